"""TVM's modules and node types as `Any`, for type checking.

TVM's nodes get their fields and operators at run time, so a type checker cannot see them; only this project's own types
are checked.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tvm import ir as _ir
from tvm import relax as _relax
from tvm import s_tir as _s_tir
from tvm import te as _te
from tvm import tirx as _tirx
from tvm import topi as _topi

ir: Any = _ir
relax: Any = _relax
s_tir: Any = _s_tir
te: Any = _te
tirx: Any = _tirx
topi: Any = _topi

Value: TypeAlias = Any  # a Relax expression: variable, call or constant
Call: TypeAlias = Any  # a Relax call of an operator
Function: TypeAlias = Any  # a Relax function
Module: TypeAlias = Any
Builder: TypeAlias = Any  # a Relax BlockBuilder
Binding: TypeAlias = Any  # a variable and its value in a Relax function
Scalar: TypeAlias = Any  # a TE expression of one element
Index: TypeAlias = Any  # a TE loop variable
Tensor: TypeAlias = Any  # a TE tensor
