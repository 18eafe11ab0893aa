"""Proves a step program sound before anything runs, on any machine: `prove(program)` returns, or raises ProofError
naming the instructions.

| proof | property | file |
| --- | --- | --- |
| form | what an index or a name stands for is there | form |
| complete | units run forward and backward once a micro-batch; buckets reduced once, and then stepped once | complete |
| transfers | sends and receives match in bytes, dtype and order | order |
| collectives | groups form a grid, members join the same collectives, buffers fit | rank_grid, order, extents |
| deadlock | with finite streams and a host that compute may block, something can always proceed | order, deadlock |
| rendezvous | host order over all communicators is acyclic across ranks, as NCCL asks | order |
| race | every two conflicting accesses of a storage are ordered by streams and waits | blocks, storage_proof |
| memory | buffers are freed once, by their stream, after every use; ports agree; slots suffice | ports, storage_proof |
| close | the step ends after every instruction | storage_proof |
| values | every buffer holds what its reader declares, with every sum it owes | values_… |

The work is done on blocks and calls: a block is analysed once for all calls and all classes that share its structure,
and a pipeline's steady state is stepped through once. `tests/program/plain_proof.py` proves the storage rules again on
the flat instruction list: slow, plain, and the judge of this one.
"""

from program.proofs.complete import prove_complete
from program.proofs.error import ProofError
from program.proofs.order import prove_order
from program.proofs.prover import prove, prove_storage

__all__ = ["ProofError", "prove", "prove_complete", "prove_order", "prove_storage"]
