# SPDX-License-Identifier: GPL-2.0-only
"""Prepare docstrings and annotations of the sources for mkdocstrings, which shows the reference.

Griffe reads the sources for mkdocstrings and calls this extension for each object that it has read.

A field's annotation contains its description: mgloop.stats writes
`count: Annotated[int, "how often"]`, from which the metrics take their descriptions at run time.
Here the text becomes the docstring, and the first argument the type. An option of the server,
`workers: int = _option(1, "Processes", "processes", ...)` in mgloop.http.config, has its default
and its description in the call.

Calls (`stop()`) and parameters ("debug: ...") are written without mark-up in docstrings, because
help() shows docstrings unchanged. In the Markdown both become code.
"""

import ast
import re

import griffe

_CALL = re.compile(r"(?<![`\w.])[A-Za-z_][\w.]*\([^()\s]*\)(?!`)")


def as_markdown(text, names=()):
    """Return the docstring `text` with calls, and the `names` that it describes, as code."""
    if names:
        named = "|".join(map(re.escape, names))
        text = re.sub(rf"(^|[.;,] +|\n)((?:{named})(?:, (?:{named}))*): ", r"\1`\2`: ", text)
    lines = [
        line if line.startswith("    ") else _CALL.sub(r"`\g<0>`", line)
        for line in text.splitlines()
    ]
    return re.sub(r"::$", ":", "\n".join(lines), flags=re.M)


class Described(griffe.Extension):
    """Griffe calls the methods of an extension that are named on_..."""

    def on_attribute_instance(self, *, node, attr, agent, **kwargs):
        """Called after `attr` was read from `node`: set its docstring, type and default."""
        match getattr(node, "annotation", None), getattr(node, "value", None):
            case ast.Subscript(ast.Name("Annotated"), ast.Tuple([kind, text, *level])), _:
                words = ast.literal_eval(text) + (" (a level)" if level else "")
                attr.annotation = griffe.safe_get_annotation(kind, parent=attr.parent)
                attr.docstring = griffe.Docstring(as_markdown(words), parent=attr)
            case _, ast.Call(ast.Name("_option"), [default, _, text, *_]):
                attr.value = griffe.safe_get_expression(default, parent=attr.parent)
                attr.docstring = griffe.Docstring(ast.literal_eval(text), parent=attr)

    def on_function_instance(self, *, node, func, agent, **kwargs):
        """Mark up the parameters in the docstring."""
        self._mark_up(func, [parameter.name.lstrip("*") for parameter in func.parameters])

    def on_class_members(self, *, node, cls, agent, **kwargs):
        """Mark up the parameters of __init__() and the fields in the docstring of the class."""
        names = [name for name in cls.attributes if not name.startswith("_")]
        if "__init__" in cls.members:
            names += [p.name.lstrip("*") for p in cls.members["__init__"].parameters]
        self._mark_up(cls, names)

    def on_module_members(self, *, node, mod, agent, **kwargs):
        """Mark up the module's own docstring only."""
        self._mark_up(mod, [])

    def _mark_up(self, thing, names):
        if thing.docstring is not None:
            thing.docstring.value = as_markdown(thing.docstring.value, names)
