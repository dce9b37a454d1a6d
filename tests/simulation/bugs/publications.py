"""Publications with a bug, for the checkers to find."""

from __future__ import annotations

from headrace.runners.beam.publication import PositionT, Publication, Ticket


class Trusting(Publication[PositionT]):
    """Takes a bundle's finalisation for the proof that the bundle is durable, as Beam's documentation has it."""

    def finalised(self, ticket: Ticket[PositionT]) -> PositionT | None:
        super().finalised(ticket)
        return ticket.reached.end if ticket.life == self._life else None
