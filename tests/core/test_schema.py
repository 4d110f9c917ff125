"""Schemas: every command with --json has one that is valid, complete and described, and a change of it is seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.cli.json_option import JsonOption
from tvm_cascade.errors import InfeasibleError, LoadError

WITH_JSON = sorted(n for n, c in main.commands.items() if any("--json" in one.opts for one in c.params))


def schema(command: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["schema", command])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def objects(of: Any) -> Iterator[dict[str, Any]]:
    """Every schema inside of a schema that has properties."""
    if isinstance(of, dict):
        if "properties" in of:
            yield of
        for one in of.values():
            yield from objects(one)


def test_every_json_option_names_what_is_printed() -> None:
    told = [n for n, c in main.commands.items() if any(isinstance(one, JsonOption) for one in c.params)]
    assert sorted(told) == WITH_JSON != []


@pytest.mark.parametrize("command", WITH_JSON)
def test_schemas_are_valid_and_described(command: str, golden: Callable[[str, str], None]) -> None:
    found = schema(command)
    Draft202012Validator.check_schema(found)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert found["$id"] == f"urn:tvm-cascade:schema:{command}:1"
    assert found["type"] == "object" and found["required"] and {"Refusal", "Error"} <= found["$defs"].keys()
    for one in objects(found):
        assert one["additionalProperties"] is False and one["description"]
        assert set(one["required"]) <= one["properties"].keys()
        assert all(value.get("description") for value in one["properties"].values())
    golden(f"schemas/{command}.json", json.dumps(found, indent=1) + "\n")


def test_every_schema_in_the_golden_texts_is_of_a_command() -> None:
    folder = Path(__file__).parents[1] / "golden" / "schemas"
    assert sorted(p.stem for p in folder.iterdir()) == WITH_JSON


def test_a_command_without_json_is_refused() -> None:
    done = CliRunner().invoke(main, ["schema", "schema"])
    assert done.exit_code == 2 and "no command 'schema' has --json: give one of allocate" in done.stderr


@pytest.mark.parametrize("error", [LoadError("x.onnx", "is empty"), InfeasibleError(9, 8, ["conv"], "give it more")])
def test_refusals_are_a_definition_of_every_schema(error: LoadError | InfeasibleError) -> None:
    found = schema("plan")
    refusals = Draft202012Validator({"$ref": "#/$defs/Refusal", "$defs": found["$defs"]})
    refusals.validate({"error": error.to_dict(), "limited": False})
    assert not refusals.is_valid({"error": error.to_dict(), "limited": 1})
    assert not refusals.is_valid({"error": {**error.to_dict(), "why": ""}})
    assert not Draft202012Validator(found).is_valid({"error": error.to_dict()})
