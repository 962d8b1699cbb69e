"""The reference, made from the code: names and docstrings, options, errors, commands, settings. Nothing of it is written by hand."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import yaml

import bk_core
import bk_spark
from bk_core import errors, log_lines
from bk_core.cli import cli
from bk_core.cli.statuses import STATUSES
from bk_core.config import SET_BY_HAND, ClientConfig
from bk_core.metrics import table
from bk_core.protocol.ledger.read.options import ReadMode, ReadOptions
from bk_core.protocol.limits import Limits
from bk_spark.options.scopes import ANY_READ, BATCH_READ, BATCH_WRITE, STREAM_READ, STREAM_WRITE, home
from bk_spark.options.table import OPTIONS, Option

ROOT = Path(__file__).resolve().parents[2]
API, ERRORS, SETTINGS = (f"{name}.md" for name in ("api", "errors", "settings"))


@cache
def pages() -> dict[str, str]:
    """Return the pages of the reference, by name."""
    return {
        "api.md": api(),
        "aio-api.md": aio_api(),
        "spark-api.md": spark_api(),
        "options.md": options(),
        "errors.md": error_classes(),
        "cli.md": commands(),
        "loggers.md": loggers(),
        "metrics.md": metrics(),
        "settings.md": settings(),
    }


# --- docstrings -------------------------------------------------------------------------------------------------------


def prose(text: str) -> str:
    """Return a docstring as Markdown: examples and indented blocks as code, lines of ``name   meaning`` as a list."""
    return "\n\n".join(filter(None, (_block(block) for block in re.split(r"\n\s*\n", text.strip("\n")))))


def _block(block: str) -> str:
    lines = block.split("\n")
    if lines[0].lstrip().startswith(">>>"):
        return "\n".join(["```python", *(re.sub(r"^ *(?:>>>|\.\.\.) ?", "", line) for line in lines), "```"])
    if all(line.startswith("    ") for line in lines):
        return "\n".join(["```text", textwrap.dedent(block), "```"])
    if sum(bool(re.match(r"\S+(?: \S+)* {2,}\S", line)) for line in lines) > 1 or re.match(r"`{0,2}\w+`{0,2} {3,}\S", lines[0]):
        return _definitions(lines)
    return "\n".join(inline(line) for line in lines)


def _definitions(lines: list[str]) -> str:
    out: list[str] = []
    for line in lines:
        found = re.match(r"(\S+(?: \S+)*?) {2,}(\S.*)", line)
        if found is not None:
            name = found[1] if found[1].startswith("`") else f"`{found[1]}`"
            out.append(f"* {inline(name)}: {inline(found[2])}")
        else:
            out.append(f"  {inline(line.strip())}" if out else inline(line))
    return "\n".join(out)


def inline(text: str) -> str:
    """Return one line of a docstring as Markdown. Names of errors, and public names written as code, are links."""
    parts = re.split(r"(``.+?``|`[^`]+`)", text)
    return "".join(_code(part.strip("`")) if at % 2 else _plain(part) for at, part in enumerate(parts))


def _code(text: str) -> str:
    name = text.partition(".")[0].rstrip("()")
    place = ERRORS if hasattr(errors, name) else API if name in bk_core.__all__ and name[0].isupper() else None
    return f"`{text}`" if place is None or text != name else f"[`{text}`]({place}#{name.lower()})"


def _plain(text: str) -> str:
    escaped = re.sub(r"([<*_\[\]])", r"\\\1", text)
    return re.sub(
        r"\b[A-Z]\w+Error\b", lambda found: f"[{found[0]}]({ERRORS}#{found[0].lower()})" if hasattr(errors, found[0]) else found[0], escaped
    )


def strings_behind(cls: type) -> dict[str, str]:
    """Return the text that stands behind each field of a class, as in ``n: int`` and a string below it."""
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError):
        return {}
    assert isinstance(node, ast.ClassDef)
    found = {}
    for at, behind in zip(node.body, node.body[1:], strict=False):
        name = at.target if isinstance(at, ast.AnnAssign) else at.targets[0] if isinstance(at, ast.Assign) else None
        is_text = isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant) and isinstance(behind.value.value, str)
        if isinstance(name, ast.Name) and is_text:
            found[name.id] = inspect.cleandoc(behind.value.value)  # type: ignore[attr-defined]
    return found


IN_EXAMPLES = "The examples begin with `import bk_core`, and `uri` is what `bk local` prints, or `.uri` of "
IN_EXAMPLES += "`bk_core.local_cluster()`."


# --- public names -----------------------------------------------------------------------------------------------------


def api() -> str:
    names = [name for name in bk_core.__all__ if name not in ("aio", "errors", "kernels", "__version__")]
    functions = [name for name in names if not inspect.isclass(getattr(bk_core, name))]
    handles = ("BookKeeper", "WriteHandle", "ReadHandle", "Log", "LogWriter", "LogReader", "FileStore", "FileStoreView", "LocalCluster")
    values = [name for name in names if name not in functions and name not in handles]
    parts = [
        "# bk_core",
        f"Everything that `import bk_core` offers. A call that can fail names its errors; [Errors]({ERRORS}) says what to do about each.",
        IN_EXAMPLES,
    ]
    for title, group in (("Functions", functions), ("Handles", handles), ("Values", values)):
        parts += [f"## {title}", *(_named(bk_core, name) for name in group)]
    handed = _handed_out("\n".join(parts))
    parts += [
        "## What calls take and return",
        "These have no name in `bk_core` itself.",
        *(_named(_module_of(cls), cls.__name__) for cls in handed),
    ]
    kernels = importlib.import_module("bk_core.kernels")
    parts += [
        "## Modules",
        "### `bk_core.aio`\n\nThe same client for asyncio: [bk_core.aio](aio-api.md).",
        f"### `bk_core.errors`\n\nAll error classes: [Errors]({ERRORS}).",
        f"### `bk_core.kernels`\n\n{prose(inspect.getdoc(kernels) or '')}",
        "### `bk_core.__version__`\n\nThe version of the installed package, as text.",
    ]
    return "\n\n".join(parts) + "\n"


def _handed_out(text: str) -> list[type]:
    """Return the classes of values that signatures in a text name, and that are no public names."""
    signatures = " ".join(re.findall(r"```python\n(.*?)```", text, re.S))
    named = set(re.findall(r"\b[A-Z]\w+\b", signatures)) - set(bk_core.__all__)
    for module in pkgutil.walk_packages(bk_core.__path__, "bk_core."):
        if not module.name.endswith("__main__") and module.name != "bk_core.client.files.fs":
            importlib.import_module(module.name)
    found = {
        what
        for name, module in list(sys.modules.items())
        if name.startswith("bk_core.")
        for what in vars(module).values()
        if inspect.isclass(what) and what.__name__ in named and what.__module__ == name and dataclasses.is_dataclass(what)
    }
    return sorted(found - {Limits, ReadOptions}, key=lambda cls: cls.__name__)


def _module_of(cls: type) -> ModuleType:
    return sys.modules[cls.__module__]


def aio_api() -> str:
    parts = ["# bk_core.aio", IN_EXAMPLES, prose(inspect.getdoc(bk_core.aio) or "")]
    parts += [_named(bk_core.aio, name, "##") for name in bk_core.aio.__all__]
    return "\n\n".join(parts) + "\n"


def spark_api() -> str:
    parts = ["# bk_spark", IN_EXAMPLES, prose(inspect.getdoc(bk_spark) or "")]
    parts += [_named(bk_spark, name, "##") for name in bk_spark.__all__]
    checkpoint = importlib.import_module("bk_spark.checkpoint")
    parts += [_named(checkpoint, name, "##") for name in ("close",)]
    return "\n\n".join(parts) + "\n"


def _named(module: ModuleType, name: str, level: str = "###") -> str:
    what = getattr(module, name)
    if not inspect.isclass(what):
        return f"{level} `{name}`\n\n{_signature(f'{module.__name__}.{name}', what)}\n\n{prose(inspect.getdoc(what) or '')}"
    parts = [f"{level} `{name}`", prose(inspect.getdoc(what) or "") if what.__doc__ and not what.__doc__.startswith(f"{name}(") else ""]
    if issubclass(what, enum.Enum):
        behind = strings_behind(what)
        parts.append("\n".join(f"* `{member.name}`{_after(behind.get(member.name))}" for member in what))
    elif dataclasses.is_dataclass(what):
        parts.append(_fields(what))
    elif name == "BkError":
        parts.append("\n".join(f"* `{key}`" for key in ("code", "retriable", "outcome_unknown", "advice", "context")))
    parts += [f"{level}# `{name}.{member}`\n\n{text}" for member, text in _members(what)]
    return "\n\n".join(part for part in parts if part)


def _after(text: str | None) -> str:
    return f": {inline(' '.join(text.split()))}" if text else ""


def _fields(cls: Any) -> str:
    if cls in (ClientConfig, Limits, ReadOptions):
        return f"The fields: [Client settings]({SETTINGS})."
    behind = strings_behind(cls)
    return "\n".join(f"* `{one.name}: {one.type}{_default(one)}`{_after(behind.get(one.name))}" for one in dataclasses.fields(cls))


def _default(one: dataclasses.Field[Any]) -> str:
    if one.default is not dataclasses.MISSING:
        return f" = {one.default.name if isinstance(one.default, enum.Enum) else repr(one.default)}"
    return "" if one.default_factory is dataclasses.MISSING else f" = {one.default_factory.__name__}()"


def _members(cls: type) -> Iterator[tuple[str, str]]:
    """Yield (name, Markdown) of the public methods and properties, in the order of the code."""
    seen = set()
    inherited = (int, str, Exception, BaseException, object, enum.Enum, enum.IntEnum)
    for base in [cls, *(one for one in cls.__mro__[1:] if one not in inherited and one.__module__.startswith("bk_"))]:
        fields = {one.name for one in dataclasses.fields(base)} if dataclasses.is_dataclass(base) else set()
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen or name in fields or not _is_code(member):
                continue
            seen.add(name)
            function = member.fget if isinstance(member, property) else getattr(member, "func", member)
            function = function.__func__ if isinstance(function, classmethod | staticmethod) else function
            told = prose(inspect.getdoc(function) or "")
            if isinstance(member, property) or hasattr(member, "func"):
                returned = inspect.signature(function).return_annotation
                yield name, f"```python\n{cls.__name__}.{name}: {_type(returned)}\n```\n\n{told}"
            else:
                yield name, f"{_signature(f'{cls.__name__}.{name}', function, bound=not isinstance(member, staticmethod))}\n\n{told}"


def _is_code(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod) or hasattr(member, "func")


def _type(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _signature(name: str, function: Callable[..., Any], *, bound: bool = False) -> str:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    shown = []
    for at, one in enumerate(parameters):
        star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(one.kind, "")
        before = parameters[at - 1].kind if at else inspect.Parameter.POSITIONAL_OR_KEYWORD
        if one.kind is one.KEYWORD_ONLY and before not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL):
            shown.append("*")
        default = "" if one.default is one.empty else f" = {one.default.name if isinstance(one.default, enum.Enum) else repr(one.default)}"
        shown.append(f"{star}{one.name}" + ("" if one.annotation is one.empty else f": {_type(one.annotation)}") + default)
    returned = "" if signature.return_annotation is signature.empty else f" -> {_type(signature.return_annotation)}"
    name = f"async {name}" if inspect.iscoroutinefunction(function) else name
    short = f"{name}({', '.join(shown)}){returned}"
    text = short if len(short) <= 88 else f"{name}(\n" + "".join(f"    {one},\n" for one in shown) + f"){returned}"
    return f"```python\n{text}\n```"


# --- options ----------------------------------------------------------------------------------------------------------


def options() -> str:
    def is_both(one: Option) -> bool:
        return one.field in ANY_READ.takes and one.field in BATCH_WRITE.takes | STREAM_WRITE.takes

    def is_read(one: Option) -> bool:
        return one.field in BATCH_READ.takes

    def is_stream(one: Option) -> bool:
        return one.field in STREAM_READ.takes

    parts = [
        "# Options",
        'The options of `format("bookkeeper")`. Names are compared without regard to case. A size is a number of bytes, or a number with '
        "`k`, `m`, `g`; a duration is a number with `ms`, `s`, `m`, `h`, `d`; truth is `true` or `false`.",
    ]
    left = list(OPTIONS)
    for title, belongs in (("Reads and writes", is_both), ("Reads", is_read), ("Streaming reads", is_stream), ("Writes", lambda one: True)):
        group = [one for one in left if belongs(one)]
        left = [one for one in left if one not in group]
        parts += [f"## {title}", *(_option(one) for one in group)]
    readme = (ROOT / "bk_spark" / "README.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", readme.partition("\n## Options\n")[2], maxsplit=1, flags=re.M)[0]
    rest = "\n".join(line for line in section.split("\n") if not line.startswith("|")).strip()
    return "\n\n".join([*parts, "## What is refused, what is forgotten", rest]) + "\n"


def _option(one: Option) -> str:
    default = one.shown_default if one.shown_default is not None else f"`{one.default}`"
    also = f" Also `{'`, `'.join(one.aliases)}`." if one.aliases else ""
    default = {
        "required": "Has no default, and is required.",
        "one of these four": "Has no default; a read names one of `log`, `logs`, `logPattern`, `ledgers`.",
    }.get(default, f"Default: {default}.")
    place = re.sub(r"metadata=([\w, ]+?)(?= and |$)", r"metadata tables (\1)", home(one.field))
    return f"### `{one.name}`\n\n{one.doc}\n\n<small>{default}{also} For {place}.</small>"


# --- errors -----------------------------------------------------------------------------------------------------------

OTHERS = "Calls, connections and this machine"
AREAS = {
    "BookieError": "One bookie",
    "LedgerError": "Ledgers",
    "MetadataError": "The metadata store",
    "LogError": "Logs",
    "FileStoreError": "File stores and checkpoints",
}


def all_errors() -> list[type[errors.BkError]]:
    """Return every error class of the product, in the order of the code: parents come first."""
    for package in (bk_core, bk_spark):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__") and ".demo" not in module.name:
                importlib.import_module(module.name)

    def below(cls: type[errors.BkError]) -> Iterator[type[errors.BkError]]:
        for child in cls.__subclasses__():
            if child.__module__.startswith("bk_"):
                yield child
                yield from below(child)

    found = dict.fromkeys([errors.BkError, *below(errors.BkError)])
    places = {node.name: node.lineno for node in ast.parse(inspect.getsource(errors)).body if isinstance(node, ast.ClassDef)}
    return sorted(found, key=lambda cls: places.get(cls.__name__, sys.maxsize))


def error_classes() -> str:
    found = all_errors()
    areas: dict[str, list[type[errors.BkError]]] = {OTHERS: []}
    for cls in found:
        area = next((title for name, title in AREAS.items() if issubclass(cls, getattr(errors, name))), OTHERS)
        areas.setdefault(area, []).append(cls)
    parts = [
        "# Errors",
        "Every failure is a class below `BkError`. Its text begins with its code in brackets, as in `[BK-FENCED] ...`. The code is in the "
        "message also where Spark shows an error of its own, so search this page for it.",
        "* **may be repeated** (`retriable`): the same call may succeed later without a change.\n"
        "* **outcome unknown** (`outcome_unknown`): what was asked for may or may not have happened. An error of such a class whose "
        "`outcome_unknown` is False says that nothing was done.",
    ]
    for title, classes in areas.items():
        parts += [f"## {title}", *(_error(cls) for cls in classes)]
    return "\n\n".join(parts) + "\n"


def _error(cls: type[errors.BkError]) -> str:
    parents = [] if cls is errors.BkError else ["below " + ", ".join(f"`{base.__name__}`" for base in cls.__bases__)]
    marks = [*parents, *(["may be repeated"] if cls.retriable else []), *(["outcome unknown"] if cls.outcome_unknown else [])]
    own = inspect.cleandoc(cls.__doc__ or "") if "__doc__" in vars(cls) else ""
    return "\n\n".join(
        [
            f"### `{cls.__name__}`",
            " · ".join([f'<span class="code">{cls.code}</span>', *marks]),
            *([prose(own)] if own else []),
            f"**What to do.** {inline(cls.advice)}",
        ]
    )


# --- commands ---------------------------------------------------------------------------------------------------------


def all_commands(group: click.Command = cli, name: str = "bk") -> Iterator[tuple[str, click.Command]]:
    """Yield (full name, command) of the command line, groups before their members. Single commands of a group come before the groups in
    it: a page shows each below the group that was named last."""
    yield name, group
    if isinstance(group, click.Group):
        for word in sorted(group.commands, key=lambda word: (isinstance(group.commands[word], click.Group), word)):
            yield from all_commands(group.commands[word], f"{name} {word}")


def commands() -> str:
    parts = ["# Command line", "`-h` or `--help` of every command shows the same."]
    rows = "\n".join(f"| {status} | {inline(meaning)} |" for status, meaning in STATUSES.items())
    parts += ["## Exit status", f"The same for every command.\n\n| status | means |\n| --- | --- |\n{rows}"]
    for name, command in all_commands():
        level = "##" if isinstance(command, click.Group) else "###"
        parts += [f"{level} {name}", _command(name, command)]
    return "\n\n".join(parts) + "\n"


def loggers() -> str:
    rows = "\n".join(f"| `{name}` | {what} |" for name, what in log_lines.LOGGERS.items())
    parts = [
        "# Log lines",
        "Everything is logged by Python's `logging`, below two names, `bk_core` and `bk_spark`. A program that configures logging sees the "
        "lines as its own.",
        f"| logger | tells |\n| --- | --- |\n{rows}",
        f"**`{log_lines.VARIABLE}`** shows them on standard error in processes that nobody configures: clients, `bk`, the embedded "
        "bookie (whose level is INFO without it), the gateway of checkpoints in the driver, Spark's source runner and its workers. Its "
        f"value is one of {', '.join(f'`{level}`' for level in log_lines.LEVELS)}. It is read when `bk_core` is imported. Executors on "
        f"other machines need it in their own environment: `spark.executorEnv.{log_lines.VARIABLE}`. Where a program has configured the "
        "root logger, the variable sets the level, and the program's handlers show the lines.",
        f"**`{log_lines.FORMAT_VARIABLE}=json`** makes an object of JSON of each of these lines: `ts`, `level`, `logger`, `msg`, and "
        "`context` with the facts of the line as numbers and names. `bk_core.log_lines.JsonLines` is the formatter, for handlers of a "
        "program's own.",
        "**`bk --verbose`** shows the lines of one command from INFO on, `-vv` from DEBUG on.",
    ]
    return "\n\n".join(parts) + "\n"


def metrics() -> str:
    """Return the page of metrics: how to get at them, the alerts of docs/metrics, and every metric."""
    rules = [rule for group in yaml.safe_load((ROOT / "docs/metrics/alerts.yml").read_text())["groups"] for rule in group["rules"]]
    parts = [
        "# Metrics and alerts",
        "Clients, embedded bookies and the streaming queries of a driver count what they do. Counting happens once for each turn and "
        "answer, never for each entry, and needs no setting.",
        "| of | get at it by |\n| --- | --- |\n"
        "| a client | `client.metrics()`, a value with percentiles and differences |\n"
        "| an embedded bookie | `EmbeddedBookie.metrics()`; `--metrics-port` and `--metrics-log-s` of its process; `bk local --metrics` |\n"
        "| streaming queries | `spark.streams.addListener(bk_spark.QueryMetrics())` in the driver |\n"
        "| tasks of Spark | lines `BK-SINK-TASK` and `BK-READ-TASK` ([Log lines](loggers.md)); `bk_spark.count_in_accumulators(spark)` |",
        "```python\nfrom bk_core.metrics import opentelemetry, prometheus\n\n"
        "prometheus.register(client)                  # on the page that the program serves already\n"
        "page = prometheus.serve(client, port=9108)   # or on a page of its own, on the loopback\n"
        "exported = opentelemetry.export(client)      # or to where the SDK of the program sends metrics\n```",
        'They need `pip install "bk-spark[prometheus]"` or `"bk-spark[opentelemetry]"`. The label `client` (of bookies `bookie`) names the '
        "source. OpenTelemetry knows counters by their names without `_total`, and its histograms have one time for all entries that "
        "were acknowledged together.",
        "The repository has a board for Grafana, `docs/metrics/board.json`, which asks for its Prometheus when it is imported, and the "
        "alerts below as a file of rules, `docs/metrics/alerts.yml`.",
        "## Alerts",
        "The limits are to begin with. Severity `page` is for now, `ticket` for working hours.",
        *(_alert(rule) for rule in rules),
    ]
    titles = (("A client", table.CLIENT), ("An embedded bookie", table.BOOKIE), ("Streaming queries", table.SPARK))
    for title, listed in titles:
        rows = "\n".join(_metric(metric) for metric in listed)
        parts += [f"## {title}", f"| metric | kind, unit, labels | meaning | Apache's name |\n| --- | --- | --- | --- |\n{rows}"]
    return "\n\n".join(parts) + "\n"


def _alert(rule: dict[str, Any]) -> str:
    told = f"{rule['labels']['severity']}, after {rule['for']}" if "for" in rule else str(rule["labels"]["severity"])
    annotations = rule["annotations"]
    return f"### {rule['alert']}\n\n```text\n{rule['expr']}\n```\n\n*{told}.* {annotations['why']} **Then:** {annotations['then']}"


def _metric(metric: table.Metric) -> str:
    labels = f" by {', '.join(f'`{label}`' for label in metric.labels)}" if metric.labels else ""
    apache = f"`{metric.apache}`" if metric.apache else ""
    return f"| `{metric.name}` | {metric.kind}, {metric.unit}{labels} | {metric.meaning} | {apache} |"


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"```text\n{name} {usage}\n```", prose_of_help(command.help or "")]
    rows = []
    for one in command.get_params(context):
        record = one.get_help_record(context) if isinstance(one, click.Option) and one.name != "help" else None
        if record is not None:
            rows.append(f"* `{record[0]}`{': ' if record[1] else ''}{inline(' '.join(record[1].split()))}")
    return "\n\n".join([*parts, *(["\n".join(rows)] if rows else [])])


def prose_of_help(text: str) -> str:
    r"""Return a command's help as Markdown. A paragraph behind \b keeps its lines."""
    out = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        kept = block.startswith("\b")
        out.append(f"```text\n{block.lstrip(chr(8)).strip(chr(10))}\n```" if kept else inline(" ".join(block.split())))
    return "\n\n".join(out)


# --- settings ---------------------------------------------------------------------------------------------------------

UNITS = {"_s": "seconds", "_ns": "nanoseconds", "_bytes": "bytes", "_bytes_max": "bytes", "_ns_max": "nanoseconds", "_entries": "entries",
         "_entries_max": "entries"}  # fmt: skip


def settings() -> str:
    parts = [
        "# Client settings",
        "`bk_core.connect(uri, ...)` takes the fields of `ClientConfig` by name. `limits` is a `Limits(...)` and `reads` a "
        "`ReadOptions(...)`; a program seldom needs either. Every value is checked when the client is made.",
        "These ten are the settings that a program may have a reason to set:",
        "\n".join(f"* [`{name}`](#{name}){_after(_first_sentence(strings_behind(ClientConfig)[name]))}" for name in SET_BY_HAND),
    ]
    for cls, where in (
        (ClientConfig, "bk_core"),
        (ReadOptions, "bk_core"),
        (Limits, "bk_core"),
    ):
        about = inspect.cleandoc(cls.__doc__ or "")
        parts += [f"## `{cls.__name__}`", f"`from {where} import {cls.__name__}`", prose(about)]
        behind = strings_behind(cls)
        for one in dataclasses.fields(cls):
            parts.append(f"### `{one.name}`\n\n{prose(behind.get(one.name, ''))}\n\n<small>{_setting(one)}</small>")
    modes = "\n".join(f"* `ReadMode.{mode.name}`" for mode in ReadMode)
    return "\n\n".join([*parts, "## `ReadMode`", prose(inspect.getdoc(ReadMode) or ""), modes]) + "\n"


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", text)[0]


def _setting(one: dataclasses.Field[Any]) -> str:
    suffixes = sorted((suffix for suffix in UNITS if one.name.endswith(suffix)), key=len)
    unit = f"Unit: {UNITS[suffixes[-1]]}. " if suffixes else ""
    if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
        return f"{unit}Has no default."
    return f"{unit}Default: {_value(one, suffixes[-1] if suffixes else '')}."


def _value(one: dataclasses.Field[Any], suffix: str) -> str:
    if one.default is dataclasses.MISSING:
        return f"`{one.default_factory.__name__}()`"  # type: ignore[union-attr]
    value = one.default
    if isinstance(value, enum.Enum):
        return f"`{type(value).__name__}.{value.name}`"
    if suffix.startswith("_ns") and isinstance(value, int):
        return f"`{value:_}`, {value / 1e9:g} s"
    if suffix.startswith("_bytes") and isinstance(value, int):
        return f"`{value}`, {value / 2**20:g} MiB"
    return f"`{value!r}`"
