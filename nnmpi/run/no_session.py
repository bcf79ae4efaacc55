"""What stands for the session of a rank that has none, and says why it can do nothing."""

from typing import NoReturn, cast

from nnmpi.run.session import Session


class NoModelError(AttributeError, ValueError):
    """A Trainer has no model, so it lacks attributes, and its methods refuse to do anything."""


class NoSession:
    """What a Trainer has after a restore that failed, and on a spare rank."""

    is_closed = True

    def __init__(self, why: str) -> None:
        self._why = why

    def close(self) -> None:
        """There is nothing to give back."""

    end = close

    def __getattr__(self, name: str) -> NoReturn:
        raise NoModelError(f"this Trainer has no model {self._why}")


NO_SESSION = cast(Session, NoSession("since its last restore failed: restore a snapshot"))
SPARE = cast(
    Session,
    NoSession(
        "on this rank, which is spare: the layout has no place for it; it waits in fit, and takes "
        "part where another is lost; where trainer.is_spare, call nothing else"
    ),
)
