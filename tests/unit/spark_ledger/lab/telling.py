"""What tests of the lab's machines share: to tell a machine something, and what it said."""

from __future__ import annotations

from spark_ledger.lab.machines import Effect, Machine, Received, Send

CLIENT = "client"


def said(effects: list[Effect], kind: type) -> list[object]:
    """The messages of one kind that were sent."""
    sent = [effect.message for effect in effects if isinstance(effect, Send)]
    return [message for message in sent if isinstance(message, kind)]


def tell(machine: Machine, source: str, message: object, now: float = 0.0) -> list[Effect]:
    """What follows from a message."""
    return machine.handle(Received(source, message), now)
