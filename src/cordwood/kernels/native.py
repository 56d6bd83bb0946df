"""Intrinsics that numba lacks: unaligned loads and stores, byte swaps, block copies, CRC steps, calls of C functions.

Kafka's numbers are big-endian and unaligned. `be16`, `be32` and `be64` read them with one load and one swap on the
little-endian machines that numba supports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from cordwood.kernels.compiling import njit

assert sys.byteorder == "little", "kernels read memory as little-endian and swap"

#: Features of the processor beyond its architecture's minimum; empty if LLVM cannot detect them.
CPU_FEATURES = frozenset(name for name, has in llvm.get_host_cpu_features().items() if has)
#: Whether the processor has the CRC-32C instruction of x86 (since about 2008).
HAS_CRC_INSTRUCTION = "sse4.2" in CPU_FEATURES


def _load(bits: int, result: types.Type) -> Callable[..., Any]:
    @intrinsic  # type: ignore[untyped-decorator]
    def load(context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()))
            value.align = 1
            return value

        return result(types.intp), generate

    return load  # type: ignore[no-any-return]


def _store(bits: int, kind: types.Type) -> Callable[..., Any]:
    @intrinsic  # type: ignore[untyped-decorator]
    def store(context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            stored = builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()))
            stored.align = 1
            return context.get_dummy_value()

        return types.void(types.intp, kind), generate

    return store  # type: ignore[no-any-return]


def _swap(bits: int, kind: types.Type) -> Callable[..., Any]:
    @intrinsic  # type: ignore[untyped-decorator]
    def swap(context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bswap(arguments[0])

        return kind(kind), generate

    return swap  # type: ignore[no-any-return]


load8 = _load(8, types.uint8)
load16 = _load(16, types.uint16)
load32 = _load(32, types.uint32)
load64 = _load(64, types.uint64)
store8 = _store(8, types.uint8)
store16 = _store(16, types.uint16)
store32 = _store(32, types.uint32)
store64 = _store(64, types.uint64)
_swap16 = _swap(16, types.uint16)
_swap32 = _swap(32, types.uint32)
_swap64 = _swap(64, types.uint64)


@njit(inline="always")
def be16(address: int) -> int:
    """Read a signed 16-bit number at `address`."""
    return types.int16(_swap16(load16(address)))


@njit(inline="always")
def be32(address: int) -> int:
    """Read a signed 32-bit number at `address`."""
    return types.int32(_swap32(load32(address)))


@njit(inline="always")
def be32u(address: int) -> int:
    """Read an unsigned 32-bit number at `address`."""
    return _swap32(load32(address))


@njit(inline="always")
def be64(address: int) -> int:
    """Read a signed 64-bit number at `address`."""
    return types.int64(_swap64(load64(address)))


@njit(inline="always")
def put16(address: int, value: int) -> None:
    """Store a 16-bit number, big-endian."""
    store16(address, _swap16(types.uint16(value)))


@njit(inline="always")
def put32(address: int, value: int) -> None:
    """Store a 32-bit number, big-endian."""
    store32(address, _swap32(types.uint32(value)))


@njit(inline="always")
def put64(address: int, value: int) -> None:
    """Store a 64-bit number, big-endian."""
    store64(address, _swap64(types.uint64(value)))


@intrinsic  # type: ignore[untyped-decorator]
def _copy(context: Any, target: Any, source: Any, size: Any) -> Any:

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        name = "llvm.memcpy.p0i8.p0i8.i64"
        kind = ir.FunctionType(ir.VoidType(), [byte, byte, ir.IntType(64), ir.IntType(1)])
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        target, source, size = arguments
        volatile = ir.Constant(ir.IntType(1), 0)
        builder.call(function, [builder.inttoptr(target, byte), builder.inttoptr(source, byte), size, volatile])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


#: copy(target, source, size): copies bytes between addresses that do not overlap.
copy: Callable[..., Any] = _copy


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(context: Any, address: Any) -> Any:

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        name = "llvm.prefetch.p0i8"
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        # For reading, to be kept in all cache levels, in the data cache.
        choice = [ir.Constant(word, number) for number in (0, 3, 1)]
        builder.call(function, [builder.inttoptr(arguments[0], byte), *choice])
        return context.get_dummy_value()

    return types.void(types.intp), generate


#: prefetch(address): load its cache line in advance; any address is allowed.
prefetch: Callable[..., Any] = _prefetch


@intrinsic  # type: ignore[untyped-decorator]
def _item_bytes(context: Any, array: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.int64, array.dtype.size)

    return types.int64(array), generate


#: item_bytes(array): the size of an element of a structured array, as a constant of the compiled code.
item_bytes: Callable[..., Any] = _item_bytes


@intrinsic  # type: ignore[untyped-decorator]
def _has_rank(context: Any, array: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.boolean, "rank" in array.dtype.fields)

    return types.boolean(array), generate


#: has_rank(array): whether the elements of a structured array have a field `rank`, as a constant of the compiled code.
has_rank: Callable[..., Any] = _has_rank


@intrinsic  # type: ignore[untyped-decorator]
def _multiply(context: Any, a: Any, b: Any) -> Any:
    halves = types.UniTuple(types.uint64, 2)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide, word = ir.IntType(128), ir.IntType(64)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), word)
        return context.make_tuple(builder, halves, (high, builder.trunc(product, word)))

    return halves(types.uint64, types.uint64), generate


#: multiply(a, b): the (high, low) 64 bits of a product.
multiply: Callable[..., Any] = _multiply


@intrinsic  # type: ignore[untyped-decorator]
def _trailing_zeros(context: Any, value: Any) -> Any:

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


#: trailing_zeros(value): the number of zero bits below the lowest one bit; 64 for zero.
trailing_zeros: Callable[..., Any] = _trailing_zeros


def _generate_call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    word = ir.IntType(64)
    kind = ir.FunctionType(word, [word] * (len(arguments) - 1))
    return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])


@intrinsic  # type: ignore[untyped-decorator]
def _call2(context: Any, function: Any, a: Any, b: Any) -> Any:
    return types.int64(*[types.intp] * 3), _generate_call


@intrinsic  # type: ignore[untyped-decorator]
def _call3(context: Any, function: Any, a: Any, b: Any, c: Any) -> Any:
    return types.int64(*[types.intp] * 4), _generate_call


@intrinsic  # type: ignore[untyped-decorator]
def _call4(context: Any, function: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return types.int64(*[types.intp] * 5), _generate_call


@intrinsic  # type: ignore[untyped-decorator]
def _call5(context: Any, function: Any, a: Any, b: Any, c: Any, d: Any, first: Any) -> Any:
    return types.int64(*[types.intp] * 6), _generate_call


@intrinsic  # type: ignore[untyped-decorator]
def _call7(context: Any, function: Any, a: Any, b: Any, c: Any, d: Any, first: Any, second: Any, third: Any) -> Any:
    return types.int64(*[types.intp] * 8), _generate_call


#: call2(function, a, b), …: call the C function at an address. Its arguments and its result are integers or addresses.
#: A kernel receives the address as an argument, so its cached code does not depend on where a library is loaded.
call2: Callable[..., Any] = _call2
call3: Callable[..., Any] = _call3
call4: Callable[..., Any] = _call4
call5: Callable[..., Any] = _call5
call7: Callable[..., Any] = _call7


def _crc_instruction(bits: int) -> Callable[..., Any]:
    state_bits = 64 if bits == 64 else 32
    state = types.uint64 if bits == 64 else types.uint32
    piece = types.uint64 if bits == 64 else types.uint8
    name = f"llvm.x86.sse42.crc32.{state_bits}.{bits}"

    @intrinsic  # type: ignore[untyped-decorator]
    def step(context: Any, crc: Any, data: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(ir.IntType(state_bits), [ir.IntType(state_bits), ir.IntType(bits)])
            function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
            return builder.call(function, arguments)

        return state(state, piece), generate

    return step  # type: ignore[no-any-return]


#: One step of CRC-32C over 8 bytes, or over one byte. Only if HAS_CRC_INSTRUCTION.
crc_step64 = _crc_instruction(64)
crc_step8 = _crc_instruction(8)
