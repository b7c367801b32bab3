"""Four 16-lane vector operations for numba kernels, written as LLVM instructions.

numba's own loop over 16 lanes is compiled with alias checks and scalar tails, ten times slower than the
machine; here each operation is a handful of vector instructions that LLVM splits to the width the CPU has.
Arrays are 1-D, contiguous, float32; places count floats. Nothing checks bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
FOUR = 4  # results of `combine`
_FLOAT = ir.FloatType()
_INDEX = ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_FAST = ("fast",)
_operation: Callable[..., Any] = intrinsic


def _pointer(context, builder, array_type, array, place):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [place]), _VECTOR.as_pointer())


def _load(builder, pointer):
    value = builder.load(pointer)
    value.align = 4
    return value


def _store(builder, value, pointer) -> None:
    builder.store(value, pointer).align = 4


def _broadcast(builder, scalar):
    empty = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(empty, scalar, ir.Constant(_INDEX, 0))
    zeros = ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES)
    return builder.shuffle_vector(first, empty, zeros)


def _multiply_add(builder, a, b, c):
    return builder.fadd(builder.fmul(a, b, flags=_FAST), c, flags=_FAST)


def _mix(builder, a, b, share):
    """a + share * (b - a)."""
    return _multiply_add(builder, builder.fsub(b, a, flags=_FAST), share, a)


def _total(builder, vector):
    """Sum of the lanes, by halving."""
    width = LANES
    while width > 1:
        width //= 2
        empty = ir.Constant(vector.type, ir.Undefined)
        kind = ir.VectorType(_INDEX, width)
        low = builder.shuffle_vector(vector, empty, ir.Constant(kind, list(range(width))))
        high = builder.shuffle_vector(vector, empty, ir.Constant(kind, list(range(width, 2 * width))))
        vector = builder.fadd(low, high, flags=_FAST)
    return builder.extract_element(vector, ir.Constant(_INDEX, 0))


@_operation
def add_scaled(typing_context, target, place, source, origin, factor):
    """target[place : place + 16] += factor * source[origin : origin + 16]."""
    signature = types.void(target, types.intp, source, types.intp, types.float32)

    def generate(context, builder, signature, arguments):
        target, place, source, origin, factor = arguments
        pointer = _pointer(context, builder, signature.args[0], target, place)
        values = _load(builder, _pointer(context, builder, signature.args[2], source, origin))
        total = _multiply_add(builder, values, _broadcast(builder, factor), _load(builder, pointer))
        _store(builder, total, pointer)
        return context.get_dummy_value()

    return signature, generate


@_operation
def combine(typing_context, target, place, step, source, origin, stride, count, matrix, entry, row):
    """Write four combinations of the same `count` vectors: for q in 0..3,

    target[place + q step :][:16] = sum_j matrix[entry + q row + j] * source[origin + j stride :][:16].
    """
    index = types.intp
    signature = types.void(target, index, index, source, index, index, index, matrix, index, index)

    def generate(context, builder, signature, arguments):
        target, place, step, source, origin, stride, count, matrix, entry, row = arguments
        weights = context.make_array(signature.args[7])(context, builder, matrix).data
        totals = [cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, None)) for _ in range(FOUR)]
        with cgutils.for_range(builder, count) as loop:
            at = builder.add(origin, builder.mul(loop.index, stride))
            values = _load(builder, _pointer(context, builder, signature.args[3], source, at))
            column = builder.add(entry, loop.index)
            for q, total in enumerate(totals):
                where = builder.add(column, builder.mul(row, ir.Constant(row.type, q)))
                weight = builder.load(builder.gep(weights, [where]))
                builder.store(
                    _multiply_add(builder, values, _broadcast(builder, weight), builder.load(total)), total
                )
        for q, total in enumerate(totals):
            at = builder.add(place, builder.mul(step, ir.Constant(step.type, q)))
            _store(builder, builder.load(total), _pointer(context, builder, signature.args[0], target, at))
        return context.get_dummy_value()

    return signature, generate


@_operation
def splat_edge(typing_context, target, place, source, origin, factor, share):
    """Add (1 - share) factor source to the 16 floats at `place`, share factor source to the next 16."""
    signature = types.void(target, types.intp, source, types.intp, types.float32, types.float32)

    def generate(context, builder, signature, arguments):
        target, place, source, origin, factor, share = arguments
        near = _pointer(context, builder, signature.args[0], target, place)
        beyond = builder.add(place, ir.Constant(place.type, LANES))
        far = _pointer(context, builder, signature.args[0], target, beyond)
        values = _load(builder, _pointer(context, builder, signature.args[2], source, origin))
        old_near, old_far = _load(builder, near), _load(builder, far)
        part = builder.fmul(factor, share, flags=_FAST)
        rest = builder.fsub(factor, part, flags=_FAST)
        _store(builder, _multiply_add(builder, values, _broadcast(builder, rest), old_near), near)
        _store(builder, _multiply_add(builder, values, _broadcast(builder, part), old_far), far)
        return context.get_dummy_value()

    return signature, generate


@_operation
def slice_cell(typing_context, source, edges, red, green, blue, basis, origin):
    """Interpolate 16 lanes in a grid cell and return their dot product with basis[origin : origin + 16].

    `edges`: the places of the cell's four edges along blue, in the order (red, green) = 00, 01, 10, 11.
    """
    real, places = types.float32, types.UniTuple(types.intp, 4)
    signature = real(source, places, real, real, real, basis, types.intp)

    def generate(context, builder, signature, arguments):
        source, edges, red, green, blue, basis, origin = arguments
        red, green, blue = (_broadcast(builder, share) for share in (red, green, blue))

        def edge(k):
            near = builder.extract_value(edges, k)
            far = builder.add(near, ir.Constant(near.type, LANES))
            ends = (_pointer(context, builder, signature.args[0], source, place) for place in (near, far))
            low, high = (_load(builder, pointer) for pointer in ends)
            return _mix(builder, low, high, blue)

        low = _mix(builder, edge(0), edge(1), green)
        high = _mix(builder, edge(2), edge(3), green)
        weights = _load(builder, _pointer(context, builder, signature.args[5], basis, origin))
        return _total(builder, builder.fmul(_mix(builder, low, high, red), weights, flags=_FAST))

    return signature, generate
