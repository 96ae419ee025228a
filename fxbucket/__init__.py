"""fxbucket: one trace, many static compilations, one look-up a call.

``fxbucket.compile`` for users, ``fxbucket.backend`` for those who live in torch.compile, ``fxbucket.capture`` and
``fxbucket.passes`` for those who write passes, ``fxbucket.visualize`` for all who want to look.
"""

from fxbucket.backend import backend as backend
from fxbucket.capture import capture as capture
from fxbucket.compiled import compile as compile
from fxbucket.dispatch import FxbucketWarning as FxbucketWarning
from fxbucket.passes.buckets import Range as Range
from fxbucket.passes.captured import Axis as Axis
from fxbucket.passes.errors import FxbucketError as FxbucketError

__all__ = ["Axis", "FxbucketError", "FxbucketWarning", "Range", "backend", "capture", "compile"]
__version__ = "0.1.0"
