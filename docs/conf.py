"""Sphinx's settings for the API reference: `make docs`."""

from __future__ import annotations

import nbcompile

project = "nbcompile"
author = "nbcompile contributors"
version = release = nbcompile.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "alabaster"
html_theme_options = {"description": "PyTorch models compiled block by block in a notebook", "page_width": "1000px"}
html_show_sphinx = False

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_maximum_signature_line_length = 88  # longer ones get a line for each parameter
napoleon_use_ivar = True
napoleon_numpy_docstring = False
