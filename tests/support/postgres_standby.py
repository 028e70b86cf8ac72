"""A hot standby of a PostgreSQL of the tests: streaming replication on loopback, and promotion."""

from __future__ import annotations

from wait_until import wait_until

from syncguard.testing import PostgresServer
from syncguard.testing.postgres_programs import find_program

PATIENCE_S = 60.0


class PostgresStandby(PostgresServer):
    """Starts from a copy of the primary, and then receives what the primary commits."""

    def __init__(self, primary: PostgresServer, *, fsync: bool = False) -> None:
        super().__init__(fsync=fsync)
        self._primary = primary

    def wait_until_complete(self) -> None:
        """Wait until this standby has what the primary has committed so far."""
        with self._primary.connect() as primary, self.connect() as own:
            ((written,),) = primary.execute("SELECT pg_current_wal_lsn()").fetchall()
            replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            wait_until(
                lambda: own.execute(replayed, (written,)).fetchone() == (True,), within_s=PATIENCE_S
            )

    def make_synchronous(self) -> None:
        """From now on, a commit of the primary waits until this standby has it on its disk."""
        with self._primary.connect() as primary:
            primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            primary.execute("SELECT pg_reload_conf()")
            state = "SELECT sync_state FROM pg_stat_replication"
            wait_until(lambda: primary.execute(state).fetchone() == ("sync",), within_s=PATIENCE_S)

    def stop_following(self) -> None:
        """Receive nothing more: what the primary commits from now on is lost with it."""
        with self._primary.connect() as primary, self.connect() as own:
            own.execute("ALTER SYSTEM SET primary_conninfo = ''")
            own.execute("SELECT pg_reload_conf()")
            followers = "SELECT count(*) FROM pg_stat_replication"
            wait_until(lambda: primary.execute(followers).fetchone() == (0,), within_s=PATIENCE_S)

    def promote(self) -> None:
        """Make it a primary, and return when it accepts writes."""
        with self.connect() as own:
            own.execute("SELECT pg_promote()")
            wait_until(
                lambda: own.execute("SELECT pg_is_in_recovery()").fetchone() == (False,),
                within_s=PATIENCE_S,
            )

    def _make_data(self) -> None:
        primary = self._primary
        self._run(
            [
                find_program("pg_basebackup"),
                f"--host={primary.host}",
                f"--port={primary.port}",
                f"--username={primary.user}",
                "--write-recovery-conf",
                "--wal-method=stream",
                "--checkpoint=fast",
                "--no-sync",
            ]
        )


def demote(server: PostgresServer) -> None:
    """Restart a primary as a standby that follows nobody: read-only, with its old data."""
    (server.folder / "data" / "standby.signal").touch()
    server.restart()
