"""Pictures of programs: DOT, SVG, and one HTML page; and of suggested sizes."""

if __name__ != "fxbucket.visualize":
    raise ImportError(f"import fxbucket.visualize, not {__name__}: the same file under two names gives two of every class")

from fxbucket.visualize.diff import diff_text as diff_text
from fxbucket.visualize.diff import save_diff_svg as save_diff_svg
from fxbucket.visualize.dot import dot_text as dot_text
from fxbucket.visualize.ladder import save_suggestion as save_suggestion
from fxbucket.visualize.ladder import suggestion_svg as suggestion_svg
from fxbucket.visualize.notebook import Picture as Picture
from fxbucket.visualize.notebook import show as show
from fxbucket.visualize.page import page_text as page_text
from fxbucket.visualize.page import save_page as save_page
from fxbucket.visualize.svg import save_svg as save_svg
from fxbucket.visualize.svg import svg_text as svg_text

__all__ = [
    "Picture", "diff_text", "dot_text", "page_text", "save_diff_svg", "save_page", "save_suggestion", "save_svg", "show",
    "suggestion_svg", "svg_text",
]  # fmt: skip
