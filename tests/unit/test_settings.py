"""What a deployment chooses, and how it is told that it cannot."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill import PRESETS, SettingsError
from tidemill.indexes import Retention
from tidemill.model import SELECTIONS
from tidemill.settings import Settings, from_environment

URI = "mongodb://user:S3cr3t%40x@127.0.0.1:1/db"
ARN = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:S3cr3t"
WHOLE = "must be a whole number from 1 to 1000"


def refused(**env: str) -> str:
    with pytest.raises(SettingsError) as caught:
        from_environment(env)
    return str(caught.value)


def test_nothing_has_to_be_set() -> None:
    assert from_environment({}) == Settings()
    assert from_environment({"PATH": "/bin", "HOME": "/"}) == Settings()


def test_every_variable_is_taken() -> None:
    env = {
        "MONGODB_URI": URI,
        "MONGODB_SECRET_ARN": ARN,
        "MONGODB_DATABASE": "app",
        "TASK_TIMEOUT_SEC": "1.5",
        "MAX_TASK_TIMEOUT_SEC": "100",
        "CONCURRENCY": "1",
        "BATCH_SIZE": "1000",
        "LINGER_SEC": "0",
        "MAX_EXECUTORS": "1000",
        "EXECUTE_FUNCTION": "executor",
        "FAILURES_QUEUE_URL": "https://sqs.example/failures",
        "TASK_PACKAGE": "app.tasks",
        "RETRY_POLICY": "patient",
        "SELECTION": "oldest_first",
        "RETRY_SHARE": "0",
        "DEFAULT_TASK": "noop",
        "RETENTION_DAYS": "0.5",
        "DEAD_LETTER_RETENTION_DAYS": "90",
        "EXPIRE_UNEXPORTED": "true",
        "ARCHIVE_BUCKET": "letters.example",
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
    }

    assert from_environment(env) == Settings(
        mongodb_uri=URI,
        secret_arn=ARN,
        database="app",
        task_timeout=timedelta(seconds=1.5),
        max_task_timeout=timedelta(seconds=100),
        concurrency=1,
        batch_size=1000,
        linger=timedelta(0),
        max_executors=1000,
        execute_function="executor",
        failures_queue="https://sqs.example/failures",
        task_package="app.tasks",
        retry=PRESETS["patient"],
        selection="oldest_first",
        retry_share=0.0,
        adopt_as="noop",
        retention=Retention(tasks=timedelta(hours=12), dead_letters=timedelta(days=90)),
        expire_unexported=True,
        archive_bucket="letters.example",
        release="$LATEST",
    )


@pytest.mark.parametrize("empty", ["", " ", "\t\n"])
def test_an_empty_variable_is_as_good_as_none(empty: str) -> None:  # F47
    assert from_environment(dict.fromkeys(["MONGODB_URI", "CONCURRENCY", "RETRY_POLICY", "SELECTION"], empty)) == (
        Settings()
    )


def test_white_space_around_a_value_is_not_part_of_it() -> None:  # F47
    assert from_environment({"CONCURRENCY": " 5 ", "MONGODB_URI": f"{URI}\n"}) == Settings(
        concurrency=5, mongodb_uri=URI
    )


@pytest.mark.parametrize(
    "text", ["abc", "0", "1001", "-5", "--5", "+5", "5.0", "1e2", "1_0", "\u0663", "²", "-", "0x5", "5 5", "5" * 5000]
)
def test_a_whole_number_is_plain_digits_in_range(text: str) -> None:  # F47
    assert refused(CONCURRENCY=text) == f"CONCURRENCY {WHOLE.replace('1000', '256')}"
    assert refused(BATCH_SIZE=text) == f"BATCH_SIZE {WHOLE}"


@pytest.mark.parametrize(
    "text", ["abc", "nan", "inf", "-inf", "-0.1", "1.1", "\u0660.\u0665", "1_0e-2", "0x1p-1", "0,5", ".", "1" * 5000]
)
def test_a_number_is_plain_digits_in_range_too(text: str) -> None:
    assert refused(RETRY_SHARE=text) == "RETRY_SHARE must be a number from 0 to 1"


@pytest.mark.parametrize("text", ["0", "-1", "891", "1e9", "nan"])
def test_a_timeout_is_of_this_world(text: str) -> None:
    assert refused(TASK_TIMEOUT_SEC=text) == "TASK_TIMEOUT_SEC must be a number from 1 to 890"
    assert refused(MAX_TASK_TIMEOUT_SEC=text) == "MAX_TASK_TIMEOUT_SEC must be a number from 1 to 890"


@pytest.mark.parametrize("text", ["0", "3651", "inf"])
def test_retention_is_of_this_world(text: str) -> None:
    for name in ("RETENTION_DAYS", "DEAD_LETTER_RETENTION_DAYS"):
        assert refused(**{name: text}) == f"{name} must be a number from 0.001 to 3650"


@pytest.mark.parametrize("text", ["True", "yes", "1", "on", "falsch"])
def test_a_choice_of_yes_or_no_is_true_or_false(text: str) -> None:
    assert refused(EXPIRE_UNEXPORTED=text) == "EXPIRE_UNEXPORTED must be true or false"


@pytest.mark.parametrize(
    "text", ["s3://letters", "Letters", "letters/", "le", "arn:aws:s3:::letters", "x" * 64, "-letters"]
)
def test_a_bucket_is_its_name(text: str) -> None:
    assert refused(ARCHIVE_BUCKET=text) == "ARCHIVE_BUCKET must be the name of an S3 bucket"


def test_the_usual_timeout_is_not_above_the_longest() -> None:
    assert refused(TASK_TIMEOUT_SEC="60") == "TASK_TIMEOUT_SEC must not be above MAX_TASK_TIMEOUT_SEC"
    assert from_environment({"TASK_TIMEOUT_SEC": "50"}).task_timeout == timedelta(seconds=50)


@pytest.mark.parametrize(
    "name", ["a b", "a.b", "a/b", "a$b", 'a"', "a\x00b", "\udcff", "x" * 64, "é" * 32, "a*", "a<b", "a|b", "a?"]
)
def test_the_name_of_a_database_is_one_mongodb_takes(name: str) -> None:
    assert refused(MONGODB_DATABASE=name) == "MONGODB_DATABASE must be the name of a MongoDB database"


@pytest.mark.parametrize("name", ["tidemill", "App_1-x", "é" * 31, "x" * 63])
def test_any_other_name_is_taken(name: str) -> None:
    assert from_environment({"MONGODB_DATABASE": name}).database == name


@pytest.mark.parametrize("name", ["../x", "a b", "1a", "Tâche", "x" * 101])
def test_strays_are_run_by_a_function_that_can_exist(name: str) -> None:  # F23
    assert refused(DEFAULT_TASK=name) == "DEFAULT_TASK must be the name of a task function"


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_selection_is_one_of_three_words(name: str) -> None:
    assert from_environment({"SELECTION": name}).selection == name


@pytest.mark.parametrize("name", ["fifo", "Weighted", "retries-first", "fresh", '"weighted"'])
def test_any_other_word_is_no_selection(name: str) -> None:
    assert refused(SELECTION=name) == "SELECTION must be one of weighted, retries_first, oldest_first"


def test_everything_wrong_is_told_at_once() -> None:
    message = refused(CONCURRENCY="abc", RETRY_SHARE="2", TASK_TIMEOUT_SEC="0", BATCH_SIZE="5")

    assert [part.split()[0] for part in message.split("; ")] == ["TASK_TIMEOUT_SEC", "CONCURRENCY", "RETRY_SHARE"]


def test_what_opens_the_database_is_never_shown() -> None:  # F80
    settings = from_environment({"MONGODB_URI": URI, "MONGODB_SECRET_ARN": ARN})

    assert settings.mongodb_uri == URI
    assert "S3cr3t" not in f"{settings!r} {settings}"


NAMES = ["MONGODB_DATABASE", "TASK_TIMEOUT_SEC", "MAX_TASK_TIMEOUT_SEC", "CONCURRENCY", "BATCH_SIZE", "RETRY_SHARE",
         "DEFAULT_TASK", "RETENTION_DAYS", "RETRY_POLICY", "SELECTION", "ARCHIVE_BUCKET",
         "EXPIRE_UNEXPORTED"]  # fmt: skip


def message_of(env: dict[str, str]) -> str:
    try:
        from_environment(env)
    except SettingsError as error:
        return str(error)
    return ""


SECRETS = st.text(st.characters(), max_size=10).map(lambda text: f"<{text}S3cr3t")


@given(st.dictionaries(st.sampled_from(NAMES), SECRETS, min_size=1))
def test_a_message_names_the_variables_and_shows_no_value(env: dict[str, str]) -> None:  # F80
    message = message_of(env | {"MONGODB_URI": URI})

    assert "S3cr3t" not in message
    assert {part.split()[0] for part in message.split("; ")} == set(env)


@given(st.sampled_from(NAMES), st.text(st.characters(), max_size=8) | st.text("0123456789.eE+-_ ", max_size=5))
def test_no_text_at_all_breaks_the_reading(name: str, text: str) -> None:
    message = message_of({name: text})

    assert not message or message.startswith((name, "TASK_TIMEOUT_SEC"))


@pytest.mark.parametrize("variable", ["ARCHIVE_BUCKET", "MONGODB_SECRET_ARN"])
def test_what_sam_local_cannot_resolve_is_not_there(variable: str) -> None:
    assert from_environment({"AWS_SAM_LOCAL": "true", variable: "ArchiveBucket"}) == Settings()


def test_what_was_chosen_for_sam_local_is_taken_as_anywhere() -> None:
    env = {"AWS_SAM_LOCAL": "true", "ARCHIVE_BUCKET": "letters", "MONGODB_SECRET_ARN": ARN}

    assert from_environment(env) == Settings(archive_bucket="letters", secret_arn=ARN)
    assert "ARCHIVE_BUCKET must be the name" in refused(AWS_SAM_LOCAL="true", ARCHIVE_BUCKET="My_Bucket")


def test_a_logical_id_is_no_bucket_where_sam_local_is_not_at_work() -> None:
    assert "ARCHIVE_BUCKET must be the name" in refused(ARCHIVE_BUCKET="ArchiveBucket")
