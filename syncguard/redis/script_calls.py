"""Every operation on Redis as a value: the script, its keys and arguments, and the reply's reader.

No I/O here, and no difference between blocking and asyncio: both backends run the same calls.
All input is checked when a call is created, so that bad input never reaches a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from syncguard._backend.granted import Granted
from syncguard._backend.listing_and_health import LockPage
from syncguard._backend.optional import Extension, Refusal, Turn
from syncguard.constants import (
    CLEANUP_GUARD_MS,
    DEFAULT_KEY_PREFIX,
    FENCE_MAX,
    TIME_TOLERANCE_MS,
)
from syncguard.errors import invalid_argument
from syncguard.keys import (
    display_hash,
    generate_lock_id,
    validate_holder,
    validate_lock_id,
    validate_ms,
    validate_ttl_ms,
)
from syncguard.redis import scripts, spent_ids
from syncguard.redis.names import LockNames, Names, Space, quoted
from syncguard.redis.replica_acknowledgement import ReplicaAcknowledgement
from syncguard.redis.replies import (
    Reader,
    Reply,
    read_counts,
    read_extend,
    read_extends,
    read_release,
    read_resent_release,
    read_turn,
)
from syncguard.types import AbsenceReason, ExtendResult, LockInfoDebug, ReleaseResult

T = TypeVar("T")
FenceFloor = Literal["clock"]

PAGE: Final = 1000
"""The largest number of locks that one script call lists."""

MAX_EXTENDED_TOGETHER: Final = 32
"""How many locks one script call extends: it blocks Redis for a third of a millisecond."""

WAKE_TTL_MS: Final = 2_000
"""The TTL of a wake-up that no waiter consumes."""

WAITING_SLACK_MS: Final = 1_000
"""The waiter's flag expires this long after the wait, because of slow networks."""

GUESSED_HOLD_MS: Final = 50
"""The assumed hold time of a lock while none was measured."""

EARLY_MS: Final = 500
"""A caller retries at most this long before its turn: the current hold may end early."""

QUEUE_KEPT_MS: Final = 60_000
"""How long an unused queue is kept, because it stores the mean hold time."""

TOMBSTONE_MS: Final = 60_000
"""How long an undone lock id is refused: longer than a request can be on its way."""

_TOLERANCE: Final = str(TIME_TOLERANCE_MS)
_WAKE_TTL: Final = str(WAKE_TTL_MS)
_TOMBSTONE_TTL: Final = str(TOMBSTONE_MS)


@dataclass(slots=True, repr=False)  # not frozen: that would double the cost of creating one
class Call(Generic[T]):
    """One round trip. ``read`` converts the reply to the result."""

    script: scripts.Script
    keys: tuple[str, ...]
    args: tuple[str, ...]
    """Only text: hiredis converts numbers to text, and an interrupt during that crashes it."""
    read: Callable[[Reply], T]
    key: str | None = None
    lock_id: str | None = None
    if_resent: Callable[[Reply, T], T] | None = None
    """Corrects the result of a request that was sent twice, where Redis cannot detect that."""
    wait: tuple[str, ...] | None = None
    """WAIT, to be sent together with the script. The reply is then a pair: the script's, WAIT's."""
    may_be_sent: bool = False
    """Set by the runner before it sends the request: from then on the server may execute it."""

    def __repr__(self) -> str:
        # Tracebacks with local variables show calls: no key and no lock id may be in the text.
        return f"<Call {self.script.name}>"


class Calls:
    """The calls of one backend: its names, its hashes, its options."""

    def __init__(
        self,
        key_prefix: str = DEFAULT_KEY_PREFIX,
        *,
        cleanup_in_is_locked: bool = False,
        hash_secret: str | bytes | None = None,
        fence_floor: FenceFloor | None = None,
        default_holder: Callable[[], str] | None = None,
        clustered: bool = False,
        acknowledgement: ReplicaAcknowledgement | None = None,
    ) -> None:
        if not isinstance(cleanup_in_is_locked, bool):
            raise invalid_argument("cleanup_in_is_locked must be True or False")
        if fence_floor not in (None, "clock"):
            raise invalid_argument("fence_floor must be None or 'clock'")
        if default_holder is not None and not callable(default_holder):
            raise invalid_argument("default_holder must be a function that returns a label")
        self.names: Final = Names(key_prefix, clustered=clustered)
        self.hash: Final = display_hash(hash_secret)
        self._reader = Reader(self.hash)
        self._floor = fence_floor or ""
        self._default_holder = default_holder
        self._guard = str(CLEANUP_GUARD_MS) if cleanup_in_is_locked else ""
        self._tail = (self._floor, FENCE_MAX)
        self.acknowledgement: Final = acknowledgement

    # -- acquire, release, extend, adopt ------------------------------------------------------

    def acquire(
        self, key: str, ttl_ms: int, holder: str | None, *, wait_ms: int | None = None
    ) -> Call[Granted | Refusal]:
        names = self._names_of(key)
        validate_ttl_ms(ttl_ms)
        if holder is None and self._default_holder is not None:
            holder = self._default_holder()
        if holder is not None:
            validate_holder(holder)
        lock_id = _lock_id_in(names.bucket)
        space = names.space
        keys: tuple[str, ...] = (
            names.lock,
            space.index_key(lock_id),
            names.fence,
            space.live,
            space.tally,
        )
        label = "" if holder is None else f',"holder":{quoted(holder)}'
        record = f'{{"lockId":"{lock_id}","key":{names.json}{label}'
        args: tuple[str, ...] = (lock_id, str(ttl_ms), _TOLERANCE, record, *self._tail)
        spent = spent_ids.of_lock(names.lock)
        if wait_ms:
            keys = (*keys, names.waiting)
            args = (*args, str(wait_ms + WAITING_SLACK_MS))
        if spent:
            args = (*args, spent) if wait_ms else (*args, "", spent)

        def read(reply: Reply) -> Granted | Refusal:
            return self._reader.acquire(reply, lock_id, names.key)

        call = Call(scripts.ACQUIRE, keys, args, read, names.key, lock_id)
        return call if self.acknowledgement is None else acknowledged(call, self.acknowledgement)

    def release(self, lock_id: str) -> Call[ReleaseResult]:
        validate_lock_id(lock_id)
        space = self.names.space_of(lock_id)
        return Call(
            scripts.RELEASE,
            (space.index_key(lock_id), space.live),
            (lock_id, _TOLERANCE, space.waiting_head, space.wake_head, _WAKE_TTL),
            read_release,
            lock_id=lock_id,
            if_resent=read_resent_release,
        )

    def extend(self, lock_id: str, ttl_ms: int) -> Call[ExtendResult]:
        validate_lock_id(lock_id)
        validate_ttl_ms(ttl_ms)
        space = self.names.space_of(lock_id)
        call = Call(
            scripts.EXTEND,
            (space.live, space.index_key(lock_id)),
            (lock_id, str(ttl_ms)),
            read_extend,
            lock_id=lock_id,
        )
        return call if self.acknowledgement is None else acknowledged(call, self.acknowledgement)

    def extend_together(self, extensions: Sequence[Extension]) -> Call[list[ExtendResult]]:
        """Extend locks in one script call: at most 32, and on a cluster of one bucket.

        Without WAIT: the channel sends one for many of these calls.
        """
        keys: list[str] = []
        args: list[str] = []
        space = self.names.space_of(extensions[0][0])
        for lock_id, ttl_ms in extensions:
            validate_lock_id(lock_id)
            validate_ttl_ms(ttl_ms)
            keys.append(space.index_key(lock_id))
            args.append(lock_id)
            args.append(str(ttl_ms))
        return Call(
            scripts.EXTEND,
            (space.live, *keys),
            tuple(args),
            lambda reply: read_extends(reply, len(extensions)),
        )

    def adopt(self, lock_id: str, ttl_ms: int, holder: str | None) -> Call[Granted | AbsenceReason]:
        validate_lock_id(lock_id)
        validate_ttl_ms(ttl_ms)
        validate_holder(holder)
        new_id = _lock_id_in(self.names.bucket_of(lock_id))
        space = self.names.space_of(lock_id)

        def read(reply: Reply) -> Granted | AbsenceReason:
            return self._reader.adopt(reply, new_id)

        call = Call(
            scripts.ADOPT,
            (space.index_key(lock_id), space.index_key(new_id), space.live),
            (lock_id, new_id, str(ttl_ms), holder or ""),
            read,
            lock_id=lock_id,
        )
        return call if self.acknowledgement is None else acknowledged(call, self.acknowledgement)

    def undo(self, lock_id: str) -> Call[bool]:
        validate_lock_id(lock_id)
        space = self.names.space_of(lock_id)
        return Call(
            scripts.UNDO,
            (space.index_key(lock_id), space.live),
            (lock_id, space.waiting_head, space.wake_head, _WAKE_TTL, _TOMBSTONE_TTL),
            lambda reply: reply == 1,
            lock_id=lock_id,
        )

    def pass_on(self, key: str) -> Call[bool]:
        names = self._names_of(key)
        return Call(
            scripts.PASS_ON_WAKE_UP,
            (names.lock, names.waiting, names.wake),
            (_WAKE_TTL,),
            lambda reply: reply == 1,
            names.key,
        )

    def ring(self, bell: str) -> Call[bool]:
        return Call(scripts.RING_BELL, (bell,), (_WAKE_TTL,), lambda reply: reply == 1)

    # -- queue --------------------------------------------------------------------------------

    def next_turn(
        self, key: str, place_ms: int, held_ms: int, max_wait_ms: int, max_delay_ms: int
    ) -> Call[Turn]:
        names = self._names_of(key)
        for name, ms in (
            ("place_ms", place_ms),
            ("held_ms", held_ms),
            ("max_wait_ms", max_wait_ms),
            ("max_delay_ms", max_delay_ms),
        ):
            validate_ms(name, ms)
        ticket = generate_lock_id()
        numbers = (
            place_ms,
            held_ms,
            max_wait_ms,
            max_delay_ms,
            GUESSED_HOLD_MS,
            QUEUE_KEPT_MS,
            EARLY_MS,
        )
        return Call(
            scripts.NEXT_TURN,
            (names.lock, names.space.queue_head + names.lock),
            (ticket, *map(str, numbers)),
            lambda reply: read_turn(reply, ticket),
            names.key,
        )

    def end_wait(self, key: str, ticket: str) -> Call[bool]:
        names = self._names_of(key)
        return Call(
            scripts.END_WAIT,
            (names.space.queue_head + names.lock,),
            (validate_lock_id(ticket),),
            lambda reply: reply == 1,
            names.key,
        )

    # -- read ---------------------------------------------------------------------------------

    def is_locked(self, key: str) -> Call[bool]:
        names = self._names_of(key)
        return Call(
            scripts.IS_LOCKED,
            (names.lock, names.space.live),
            (_TOLERANCE, self._guard, names.space.index_head),
            lambda reply: reply == 1,
            names.key,
        )

    def lookup(self, key: str | None, lock_id: str | None) -> Call[LockInfoDebug | None]:
        """The raw record. Only the raw helpers may return it unchanged."""
        if (key is None) == (lock_id is None):
            raise invalid_argument("lookup takes either key or lock_id, and not both")
        if key is not None:
            names = self._names_of(key)
            return Call(scripts.LOOKUP_BY_KEY, (names.lock,), (), self._reader.lookup, names.key)
        lock_id = validate_lock_id(lock_id or "")
        index = self.names.index(lock_id)
        return Call(
            scripts.LOOKUP_BY_ID, (index,), (lock_id,), self._reader.lookup, lock_id=lock_id
        )

    def live_locks(self, space: Space, offset: int, limit: int) -> Call[LockPage]:
        return Call(
            scripts.LIVE_LOCKS, (space.live,), (str(offset), str(limit)), self._reader.live_locks
        )

    def walk(
        self, space: Space, cursor: str, texts: Sequence[str]
    ) -> Call[tuple[str, list[LockInfoDebug]]]:
        """``texts``: return only records that contain all of them."""
        return Call(
            scripts.FIND_LIVE_LOCKS, (space.live,), (cursor, str(PAGE), *texts), self._reader.walk
        )

    def counts(self, space: Space) -> Call[tuple[int, int]]:
        return Call(scripts.COUNTS, (space.live, space.tally), (), read_counts)

    def _names_of(self, key: str) -> LockNames:
        try:
            return self.names.of(key)
        except TypeError:  # an unhashable value cannot be a key
            raise invalid_argument(f"a key must be a str, not {type(key).__name__}") from None


def acknowledged(call: Call[T], acknowledgement: ReplicaAcknowledgement) -> Call[T]:
    """The call with a WAIT after its script."""
    call.wait = acknowledgement.wait
    call.read = acknowledgement.reading(call.read, call.key, call.lock_id)
    return call


def _lock_id_in(bucket: str) -> str:
    lock_id = generate_lock_id()
    return bucket + lock_id[1:] if bucket else lock_id
