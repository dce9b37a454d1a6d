"""Publications with a bug, for the checkers to find."""

from headrace.runners.beam.publication import FinalizationToken, PositionT, Publication


class Trusting(Publication[PositionT]):
    """Takes a bundle's finalisation for the proof that the bundle is durable, as Beam's documentation has it."""

    def finalised(self, token: FinalizationToken[PositionT]) -> PositionT | None:
        super().finalised(token)
        return token.reached.end if token.lifetime == self._lifetime else None
