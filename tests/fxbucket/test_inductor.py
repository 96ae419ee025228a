from __future__ import annotations

from fxbucket import inductor


def test_options_of_inductor_are_listed():
    assert {"max_autotune", "triton.cudagraphs"} <= set(inductor.inductor_option_names())
