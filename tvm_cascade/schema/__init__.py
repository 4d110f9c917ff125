"""What the commands print under `--json`, as typed records, and the JSON schemas derived from them.

A record is a `TypedDict` whose fields are `Annotated` with a sentence for the reader of the schema. The functions that make
the objects return these types, so a type checker holds them to it; `tests/cli/test_schema.py` holds what is printed to the
schemas, which allow no other keys.
"""

from tvm_cascade.schema.derive import VERSION, schema_of

__all__ = ["VERSION", "schema_of"]
