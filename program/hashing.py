"""The program's hash: equal programs, and only those, have the same one.

Ranks compare it before the first step and every measured timeline carries it, so that a measurement is never held
against a forecast of something else. It covers what is executed and by whom: classes (blocks, calls, bindings,
buffers, parameters), `class_of`, the groups, and the execution (kernels, graph, whose host code). Words of
implementation rules do not enter: two implementations that compile to the same are the same program.

The canonical form is nested tuples in field order, written by marshal in its format 2. That format depends on values
alone (later ones also write which objects are shared) and is ten times faster than JSON. Calls enter as columns of
whole numbers, however they are written (`program.calls`): bindings are millions of pairs for a deep pipeline.
Blocks are shared by classes and calls, so each object is written once.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from dataclasses import fields
from hashlib import blake2b
from operator import attrgetter
from typing import Any

from program.buffers import Bucket, Buffer, Param
from program.calls import columns
from program.declared import Values
from program.instruction import Comm, Instruction
from program.kinds import KernelCall
from program.lines import Body
from program.step_program import Block, Execution, Group, PortIn, PortOut, RankProgram, StepProgram

DIGEST_BYTES = 16


def _fields_of(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """All field values of a dataclass, in order (attrgetter runs in C: a 175B program has 10,000 instructions)."""
    getter = attrgetter(*(f.name for f in fields(kind)))
    return lambda thing: tuple(getter(thing))


_BUFFER, _COMM, _KERNEL = (_fields_of(kind) for kind in (Buffer, Comm, KernelCall))
_PORT_IN, _PORT_OUT, _PARAM, _BUCKET, _GROUP = (_fields_of(kind) for kind in (PortIn, PortOut, Param, Bucket, Group))
_EXECUTION = _fields_of(Execution)
_INSTRUCTION = _fields_of(Instruction)
_PLACES = tuple(f.name for f in fields(Instruction))
_BODY, _COMM_AT, _LINES, _VALUES = (_PLACES.index(name) for name in ("body", "comm", "lines", "values"))


def program_hash(program: StepProgram) -> str:
    """32 hexadecimal digits (blake2b-128) over classes, class_of, groups and execution."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    blocks: dict[int, bytes] = {}
    bodies: dict[int, bytes] = {}
    for stage in program.classes:
        digest.update(_rank_program(stage, blocks, bodies))
    groups = [(role, [_GROUP(group) for group in program.groups[role]]) for role in sorted(program.groups)]
    digest.update(_bytes((program.class_of, groups, _EXECUTION(program.execution))))
    return digest.hexdigest()


def _rank_program(stage: RankProgram, blocks: dict[int, bytes], bodies: dict[int, bytes]) -> bytes:
    digest = blake2b(digest_size=DIGEST_BYTES)
    for block in stage.blocks:
        known = blocks.get(id(block))
        if known is None:
            known = blocks[id(block)] = _block(block, bodies)
        digest.update(known)
    digest.update(_bytes(len(stage.calls)))
    for column in columns(stage.calls):
        digest.update(column.astype(column.dtype.newbyteorder("<")).tobytes())
    buffers, params, buckets = map(_buffer, stage.buffers), map(_PARAM, stage.params), map(_bucket, stage.buckets)
    digest.update(_bytes((stage.stage, list(buffers), list(params), list(buckets))))
    return digest.digest()


def _bucket(bucket: Bucket) -> tuple[Any, ...]:
    """What nothing stays gathered in hashes as it did before there was a buffer for it, so that recordings compare."""
    fields = _BUCKET(bucket)
    return fields if bucket.whole_buffer >= 0 else fields[:-1]


def _buffer(buffer: Buffer) -> tuple[Any, ...]:
    *values, make = _BUFFER(buffer)
    return *values, None if make is None else repr(make)


def _block(block: Block, bodies: dict[int, bytes]) -> bytes:
    content = (
        block.name,
        [_instruction(i, bodies) for i in block.instructions],
        [_buffer(b) for b in block.buffers],
        [_PORT_IN(p) for p in block.ports_in],
        [_PORT_OUT(p) for p in block.ports_out],
        block.net_bytes,
        block.peak_bytes,
    )
    return blake2b(_bytes(content), digest_size=DIGEST_BYTES).digest()


def _instruction(instruction: Instruction, bodies: dict[int, bytes]) -> list[Any]:
    values = list(_INSTRUCTION(instruction))
    values[_BODY] = [_KERNEL(call) for call in instruction.body]
    values[_COMM_AT] = None if instruction.comm is None else _COMM(instruction.comm)
    values[_LINES] = None if instruction.lines is None else _lines(instruction.lines, bodies)
    values[_VALUES] = None if instruction.values is None else _lines(instruction.values, bodies)
    return values


def _lines(body: Body | Values, known: dict[int, bytes]) -> bytes:
    """Bodies and what they declare are shared by many instructions, so each is written once."""
    if id(body) not in known:
        known[id(body)] = blake2b(repr(body).encode(), digest_size=DIGEST_BYTES).digest()
    return known[id(body)]


def _bytes(content: Any) -> bytes:
    return marshal.dumps(content, 2)
