"""The commands' output under `--json` as typed records, and the JSON schemas derived from the records.

A record is a `TypedDict` with fields `Annotated` with a sentence for the schema's reader. The functions that make the
objects return these types, so a type checker enforces them; `tests/cli/test_schema.py` compares printed objects with
the schemas, which allow no further keys.
"""

from tvm_cascade.schema.derive import VERSION, schema_of

__all__ = ["VERSION", "schema_of"]
