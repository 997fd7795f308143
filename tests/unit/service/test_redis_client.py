"""What a failure of Redis means is put into words in one place, and a refusal is not silence."""

import pytest
from redis import exceptions

from apparate.service.redis_client import failing


@pytest.mark.parametrize(
    ("error", "silent", "words"),
    [
        (exceptions.ConnectionError("Error 111 connecting to 127.0.0.1:1"), True, "does not answer (Error 111"),
        (exceptions.TimeoutError("Timeout reading from socket"), True, "does not answer"),
        (ConnectionResetError(), True, "does not answer (ConnectionResetError)"),
        (exceptions.AuthenticationError("invalid username-password pair"), False, "refuses the user or the password"),
        (exceptions.AuthenticationError("Authentication required."), False, "its Secret"),
        (exceptions.ResponseError("NOAUTH Authentication required."), False, "refuses the user or the password"),
        (exceptions.ResponseError("WRONGPASS invalid"), False, "refuses the user or the password"),
        (exceptions.NoPermissionError("this user has no permissions to run the 'xadd' command"), False, "(ACL)"),
        (exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), False, "is full"),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), False, "must name the primary"),
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), False, "is loading its data"),
        (exceptions.ConnectionError("max number of clients reached"), False, "raise its maxclients"),
        (exceptions.ResponseError("WRONGTYPE Operation against a key"), False, "refuses a command (WRONGTYPE"),
    ],
)
def test_a_failure_of_redis_says_what_it_is_and_what_to_do(error, silent, words):
    said = failing(error)
    assert (said.silent, words in said.words) == (silent, True), said


def test_the_command_of_a_pipeline_and_its_data_are_not_in_the_words():
    error = exceptions.NoPermissionError("Command # 1 (HSET k secret) of pipeline caused error: no permissions")
    assert "secret" not in failing(error).words and "no permissions" in failing(error).words


@pytest.mark.parametrize("command", ["'AUTH'", "`HELLO`"])
def test_the_arguments_of_a_command_that_a_server_does_not_know_are_not_in_the_words(command):
    error = exceptions.ResponseError(f"unknown command {command}, with args beginning with: 'default' 'secret' ")
    assert "secret" not in failing(error).words and command in failing(error).words
