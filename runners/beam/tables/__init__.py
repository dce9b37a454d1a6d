"""Tables under Beam: many writers, one committer."""
