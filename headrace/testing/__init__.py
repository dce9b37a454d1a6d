"""For tests: a source in memory (`memory`), and the kit that shows a connector and a runner to be right (`conformance`)."""

import pytest

pytest.register_assert_rewrite("headrace.testing.conformance")
