"""Projects that `tidemill init` writes and upgrades: no change of a user is overwritten."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill.cli.projects import RECORD, Plan, ProjectError, Release, plan_project, plan_upgrade

TEMPLATE = """\
Globals:
  # >>> yours: variables
  GREETING: Hello
  # <<< yours
Resources: {}
"""
OLD = Release(
    version="0.1.0",
    files={"template.yaml": TEMPLATE, "tasks/greet.py": "one\n", "README.md": "old\n", "layers/Makefile": "all:\n"},
)
NEW = Release(
    version="0.2.0",
    files={
        "template.yaml": TEMPLATE.replace("Resources: {}", "Resources: {Queue: {}}"),
        "tasks/greet.py": "two\n",
        "README.md": "new\n",
        "layers/Makefile": "all:\n",
        "events/tick.json": "{}\n",
    },
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project that the older version wrote."""
    plan_project(tmp_path / "orders", OLD).apply()
    return tmp_path / "orders"


def read(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def actions(plan: Plan) -> dict[str, str]:
    return {change.path: change.action for change in plan.changes}


def test_a_project_is_written_into_a_new_folder(folder: Path) -> None:
    written = read(folder)
    record = json.loads(written.pop(RECORD))

    assert written == OLD.files
    assert (record["version"], record["files"].keys()) == ("0.1.0", OLD.files.keys())


def test_files_that_were_there_are_named_and_left(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine\n")

    plan = plan_project(tmp_path, OLD)
    plan.apply()

    assert actions(plan) == dict.fromkeys(OLD.files, "created") | {"README.md": "kept"}
    assert read(tmp_path)["README.md"] == "mine\n"


def test_an_upgrade_leaves_a_file_that_was_there_before_tidemill(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine\n")
    plan_project(tmp_path, OLD).apply()

    plan = plan_upgrade(tmp_path, NEW)
    plan.apply()

    assert [path for path in actions(plan) if path.startswith("README.md")] == []
    assert read(tmp_path)["README.md"] == "mine\n"


def test_a_plan_alone_writes_nothing(tmp_path: Path, folder: Path) -> None:
    before = read(folder)

    plan_project(tmp_path / "other", OLD)
    plan_upgrade(folder, NEW)

    assert read(folder) == before
    assert not (tmp_path / "other").exists()


def test_an_upgrade_rewrites_what_the_user_did_not_change_and_adds_what_is_new(folder: Path) -> None:
    plan = plan_upgrade(folder, NEW)
    plan.apply()

    assert actions(plan) == {
        "template.yaml": "updated", "tasks/greet.py": "updated", "README.md": "updated", "events/tick.json": "created",
    }  # fmt: skip
    written = read(folder)
    assert json.loads(written.pop(RECORD))["version"] == "0.2.0"
    assert written == NEW.files


def test_a_second_upgrade_has_nothing_to_do(folder: Path) -> None:
    plan_upgrade(folder, NEW).apply()
    before = read(folder)

    plan = plan_upgrade(folder, NEW)
    plan.apply()

    assert plan.changes == ()
    assert read(folder) == before


def test_the_new_version_of_a_changed_file_is_written_beside_it(folder: Path) -> None:
    (folder / "README.md").write_text("old\nand mine\n")

    plan = plan_upgrade(folder, NEW)
    plan.apply()

    [offer] = [change for change in plan.changes if change.action == "offered"]
    assert (offer.path, offer.reason) == (
        "README.md.tidemill-0.2.0",
        "you changed README.md: merge the two by hand",
    )
    written = read(folder)
    assert (written["README.md"], written[offer.path]) == ("old\nand mine\n", "new\n")


def test_a_changed_file_is_offered_once_and_again_with_the_next_change(folder: Path) -> None:
    (folder / "README.md").write_text("mine\n")
    plan_upgrade(folder, NEW).apply()
    (folder / "README.md.tidemill-0.2.0").unlink()
    newest = replace(NEW, version="0.3.0", files={**NEW.files, "README.md": "newest\n"})

    assert plan_upgrade(folder, replace(NEW, version="0.2.1")).changes == ()
    assert actions(plan_upgrade(folder, newest)) == {"README.md.tidemill-0.3.0": "offered"}


def test_a_changed_file_that_did_not_change_here_is_not_mentioned(folder: Path) -> None:
    (folder / "layers/Makefile").write_text("mine:\n")

    plan = plan_upgrade(folder, NEW)
    plan.apply()

    assert "layers/Makefile" not in actions(plan)
    assert read(folder)["layers/Makefile"] == "mine:\n"


def test_an_offer_overwrites_no_file(folder: Path) -> None:
    (folder / "README.md").write_text("mine\n")
    (folder / "README.md.tidemill-0.2.0").write_text("mine, too\n")

    plan = plan_upgrade(folder, NEW)
    plan.apply()

    assert actions(plan)["README.md"] == "kept"
    assert read(folder)["README.md.tidemill-0.2.0"] == "mine, too\n"


def test_a_deleted_file_stays_deleted(folder: Path) -> None:
    (folder / "tasks/greet.py").unlink()

    plan = plan_upgrade(folder, NEW)
    plan.apply()

    assert actions(plan)["tasks/greet.py"] == "left out"
    assert not (folder / "tasks/greet.py").exists()
    assert plan_upgrade(folder, NEW).changes == ()


def test_lines_in_a_place_of_the_user_are_no_conflict_and_are_kept(folder: Path) -> None:
    template = folder / "template.yaml"
    template.write_text(TEMPLATE.replace("GREETING: Hello", "GREETING: Good morning\n  TABLE: !Ref Orders"))

    plan = plan_upgrade(folder, NEW)
    plan.apply()

    assert actions(plan)["template.yaml"] == "updated"
    assert template.read_text() == NEW.files["template.yaml"].replace(
        "GREETING: Hello", "GREETING: Good morning\n  TABLE: !Ref Orders"
    )


def test_an_empty_place_of_the_user_stays_empty(folder: Path) -> None:
    template = folder / "template.yaml"
    template.write_text(TEMPLATE.replace("  GREETING: Hello\n", ""))

    plan_upgrade(folder, NEW).apply()

    assert "GREETING" not in template.read_text()


def test_no_place_with_lines_of_the_user_is_dropped(folder: Path) -> None:
    without = replace(NEW, files={**NEW.files, "template.yaml": "Resources: {}\n"})
    before = read(folder)["template.yaml"]

    plan = plan_upgrade(folder, without)
    plan.apply()

    assert actions(plan)["template.yaml.tidemill-0.2.0"] == "offered"
    assert read(folder)["template.yaml"] == before


def test_line_ends_of_another_system_are_no_change(folder: Path) -> None:
    (folder / "README.md").write_bytes(b"old\r\n")

    assert actions(plan_upgrade(folder, NEW))["README.md"] == "updated"


def test_a_file_that_a_version_drops_is_removed_only_if_it_is_unchanged(folder: Path) -> None:
    fewer = replace(NEW, files={"template.yaml": NEW.files["template.yaml"]})
    (folder / "README.md").write_text("mine\n")

    plan = plan_upgrade(folder, fewer)
    plan.apply()

    assert actions(plan) == {
        "template.yaml": "updated", "README.md": "kept", "layers/Makefile": "removed", "tasks/greet.py": "removed",
    }  # fmt: skip
    assert read(folder).keys() == {"template.yaml", "README.md", RECORD}
    assert [path for path in folder.iterdir() if path.is_dir()] == []


def test_an_interrupted_run_is_completed_by_the_next(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half/README.md").write_text(OLD.files["README.md"])  # of a run that was killed before its record
    (folder / "README.md").write_text(NEW.files["README.md"])  # the same, of an upgrade

    plan_project(tmp_path / "half", OLD).apply()
    plan = plan_upgrade(folder, NEW)
    plan.apply()

    assert "README.md" not in actions(plan)
    assert actions(plan_upgrade(tmp_path / "half", NEW))["README.md"] == "updated"
    assert plan_upgrade(folder, NEW).changes == ()


def test_a_link_stays_a_link(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "shared.md").write_text(OLD.files["README.md"])
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(tmp_path / "shared.md")

    plan_upgrade(folder, NEW).apply()

    assert (folder / "README.md").is_symlink()
    assert (tmp_path / "shared.md").read_text() == NEW.files["README.md"]


def test_a_script_stays_executable(folder: Path) -> None:
    (folder / "README.md").chmod(0o750)

    plan_upgrade(folder, NEW).apply()

    assert (folder / "README.md").stat().st_mode & 0o777 == 0o750


def refuse(plan: object) -> str:
    with pytest.raises(ProjectError) as refused:
        plan()  # type: ignore[operator]
    return str(refused.value)


def test_a_project_is_not_written_twice(folder: Path) -> None:
    assert refuse(lambda: plan_project(folder, OLD)) == (
        f"{folder} is a project already; `tidemill init --upgrade` brings it up to date"
    )


def test_a_folder_without_a_record_is_not_upgraded(tmp_path: Path) -> None:
    assert refuse(lambda: plan_upgrade(tmp_path, NEW)) == (
        f"{tmp_path} is no project of Tidemill: {RECORD} is missing; `tidemill init` writes one"
    )


def test_an_older_version_leaves_the_project_of_a_newer_one(folder: Path) -> None:
    plan_upgrade(folder, NEW).apply()
    before = read(folder)

    assert refuse(lambda: plan_upgrade(folder, OLD)) == (
        "tidemill 0.2.0 wrote this project, and 0.1.0 is installed; "
        "install the newer version: pip install 'tidemill[cli]>=0.2.0'"
    )
    assert read(folder) == before


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"version": "0.1.0"}', '{"version": 1, "files": {}}', '{"version": "one", "files": {}}',
        '{"version": "0.1.0", "files": {"../other": null}}', '{"version": "0.1.0", "files": {"/etc/passwd": null}}',
        '{"version": "0.1.0", "files": {"README.md": "x"}}', '{"version": "0.1.0", "files": {"README.md": 1}}',
        '{"version": "0.1.0", "files": ["README.md"]}',
    ],
)  # fmt: skip
def test_a_damaged_record_is_refused(folder: Path, text: str) -> None:
    (folder / RECORD).write_text(text)

    assert refuse(lambda: plan_upgrade(folder, NEW)) == (
        f"{folder / RECORD} is damaged; restore it from version control"
    )


def test_a_file_in_the_place_of_a_folder_is_named_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text("a file\n")

    assert refuse(lambda: plan_project(tmp_path / "tasks", OLD)) == (
        f"{tmp_path / 'tasks'} is a file; name a folder, which may be new"
    )
    assert refuse(lambda: plan_project(tmp_path, OLD)) == (
        f"{tmp_path / 'tasks/greet.py'} cannot be read: Not a directory; move it or choose another folder"
    )
    assert read(tmp_path) == {"tasks": "a file\n"}


def test_a_link_that_leads_nowhere_is_named(folder: Path) -> None:
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to("/nowhere/at/all")

    assert refuse(lambda: plan_upgrade(folder, NEW)) == (
        f"{folder / 'README.md'} is a link that leads nowhere; remove it"
    )


def test_a_folder_that_takes_no_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    release = replace(OLD, files={"README.md": "x\n"})
    plan = plan_project(tmp_path / "folder", release)
    (tmp_path / "folder").rename(tmp_path / "moved")
    (tmp_path / "folder").write_text("a file in its place\n")

    with pytest.raises(ProjectError, match=r"cannot be written: .*; correct that and repeat the command"):
        plan.apply()
