"""Passes over captured FX graphs: split, discover, admit, deduplicate, concretize, verify.

Stands on torch, sympy and networkx alone, and can be used without the rest of fxbucket.
"""

if __name__ != "fxbucket.passes":
    raise ImportError(f"import fxbucket.passes, not {__name__}: the same file under two names gives two of every class")

from fxbucket.passes.torch_version import check_torch_version

check_torch_version()

from fxbucket.passes.admit import Admit as Admit
from fxbucket.passes.bound import Bound as Bound
from fxbucket.passes.boundaries import Boundary as Boundary
from fxbucket.passes.boundaries import at_module as at_module
from fxbucket.passes.boundaries import at_op as at_op
from fxbucket.passes.boundaries import every_n_nodes as every_n_nodes
from fxbucket.passes.boundaries import where as where
from fxbucket.passes.buckets import Bucket as Bucket
from fxbucket.passes.buckets import Range as Range
from fxbucket.passes.collectives import at_collective as at_collective
from fxbucket.passes.concretize import Concretize as Concretize
from fxbucket.passes.deduplicate import Deduplicate as Deduplicate
from fxbucket.passes.discover import Discover as Discover
from fxbucket.passes.pipeline import BasePass as BasePass
from fxbucket.passes.pipeline import Pass as Pass
from fxbucket.passes.pipeline import Pipeline as Pipeline
from fxbucket.passes.program import Piece as Piece
from fxbucket.passes.program import Program as Program
from fxbucket.passes.rows import RowSafety as RowSafety
from fxbucket.passes.split import Split as Split
from fxbucket.passes.verify import Verify as Verify

__all__ = [
    "Admit",
    "BasePass",
    "Bound",
    "Boundary",
    "Bucket",
    "Concretize",
    "Deduplicate",
    "Discover",
    "Pass",
    "Piece",
    "Pipeline",
    "Program",
    "Range",
    "RowSafety",
    "Split",
    "Verify",
    "at_collective",
    "at_module",
    "at_op",
    "every_n_nodes",
    "where",
]
