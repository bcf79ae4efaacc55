"""What people who change the project are given: hooks run what scripts/test runs, and forms ask."""

import re
from typing import Any

import pytest
from helpers.mpijob import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

FORMS = {
    path.name: yaml.safe_load(path.read_text())
    for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    if path.name != "config.yml"
}
KINDS = {"textarea", "input", "dropdown", "checkboxes", "markdown"}


def test_hooks_are_the_checks_of_the_tests_by_the_tools_of_the_environment() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"  # no other versions than those of setup.cfg
    assert {hook["language"] for hook in repo["hooks"]} == {"system"}
    assert not any(hook["pass_filenames"] for hook in repo["hooks"])
    checks = re.findall(r"^check (.*)$", (ROOT / "scripts" / "test").read_text(), re.M)
    assert [hook["entry"] for hook in repo["hooks"]] == checks
    tools = (ROOT / "setup.cfg").read_text().partition("\ntest =\n")[2].partition("\n# CUDA")[0]
    packages = {"ruff": "ruff", "mypy": "mypy", "lint-imports": "import-linter"}
    assert all(f"    {packages[check.split()[0]]}>=" in tools for check in checks)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_asks_for_what_the_doctor_prints(name: str) -> None:
    form: dict[str, Any] = FORMS[name]
    assert (
        {"name", "description", "body"} <= form.keys() <= {"name", "description", "body", "labels"}
    )
    fields = {field["id"]: field for field in form["body"]}
    assert len(fields) == len(form["body"])
    assert {field["type"] for field in form["body"]} <= KINDS
    assert all(field["attributes"]["label"] for field in form["body"])
    assert "`nnmpi doctor`" in fields["doctor"]["attributes"]["label"]
    required = fields["doctor"].get("validations", {}).get("required", False)
    assert required == (name == "bug.yml")


def test_the_page_says_where_each_kind_of_change_has_its_example() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    examples = {path.name for path in (ROOT / "docs" / "extending").glob("*.md")}
    assert {*re.findall(r"\(docs/extending/(\w+\.md)\)", page)} == examples
    assert ".pre-commit-config.yaml" in page
