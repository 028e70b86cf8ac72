"""The plan of a run: everything that is drawn from its seed, before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from history.fault import Fault


@dataclass(frozen=True)
class Plan:
    """The same fault, seed and length give the same plan; the machine decides the rest."""

    fault: type[Fault]
    seed: int
    seconds: float
    ttl_ms: int
    keys: int
    processes: int
    threads: int
    tasks: int
    celery: bool
    strikes_at: tuple[float, ...]
    """When the fault strikes, in seconds after the workers started."""

    @classmethod
    def of(cls, fault: type[Fault], seed: int, seconds: float) -> Plan:
        random = Random(f"{fault.__name__}.{seed}")
        seconds = max(seconds, fault.min_seconds)
        strikes = sorted(random.uniform(0.1, 0.85) for _ in range(fault.strikes))
        return cls(
            fault,
            seed,
            seconds,
            ttl_ms=random.choice((300, 600, 1_200)),
            keys=random.choice((4, 6, 8)),
            processes=random.choice((2, 3)),
            threads=random.choice((2, 3)),
            tasks=random.choice((2, 4)),
            celery=random.random() < 0.25,
            strikes_at=tuple(round(seconds * part, 3) for part in strikes),
        )

    def random(self) -> Random:
        """For the strikes: how long, how hard, whom."""
        return Random(f"strikes.{self.fault.__name__}.{self.seed}")

    @property
    def again(self) -> str:
        """The command that repeats this run."""
        arguments = f"--fault {self.fault.__name__} --seed {self.seed} --seconds {self.seconds:g}"
        return f"tox run -e faults -- {arguments}"
