from __future__ import annotations

import inspect

import pytest

from headrace.enumerator import errors


def tree() -> list[type]:
    return [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, BaseException)]


@pytest.mark.parametrize("kind", tree())
def test_every_error_is_one_of_ours(kind):
    assert issubclass(kind, errors.HeadraceError)


@pytest.mark.parametrize("kind", tree())
def test_only_a_retriable_error_of_ours_is_retried(kind):
    assert errors.is_retriable(kind("why")) is issubclass(kind, errors.RetriableError)


@pytest.mark.parametrize(("error", "retriable"), [
    (ConnectionResetError(), True), (BrokenPipeError(), True), (TimeoutError(), True), (FileNotFoundError(), False),
    (ValueError(), False), (KeyboardInterrupt(), False),
])  # fmt: skip
def test_of_pythons_errors_those_of_a_connection_are_retried(error, retriable):
    assert errors.is_retriable(error) is retriable


def test_wrong_use_is_a_value_error_too():
    assert issubclass(errors.UsageError, ValueError)
