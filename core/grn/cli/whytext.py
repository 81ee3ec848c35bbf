"""An explanation as text: what it is, where and why, what lets it start, what is known of its type.

Promises: every number comes with its unit; what nobody knows is said to be unknown; lines fit the
terminal, and no control character of a job's name reaches it.
Must not: know what the numbers mean for a decision; the broker has said that.
"""

from __future__ import annotations

import textwrap

from grn.cli.profile import SOURCES
from grn.cli.table import clean, format_seconds, shortened, width
from grn.rules.units import format_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    Told = Mapping[str, Any]

__all__ = ["lines"]

_INDENT = "  "
_HOLDERS = 4
_NAME = 40


def lines(told: Told) -> list[str]:
    """Return the text, wrapped to the terminal."""
    return [line for text in _text(told) for line in _wrapped(clean(text))]


def _wrapped(text: str) -> list[str]:
    inner = text.lstrip(" ")
    indent = text[: len(text) - len(inner)]
    hanging = indent + (_INDENT if inner else "")
    return textwrap.wrap(
        inner,
        width(),
        initial_indent=indent,
        subsequent_indent=hanging,
        break_on_hyphens=False,
    ) or [""]


def _text(told: Told) -> Iterator[str]:
    yield from _KINDS[told["kind"]](told)
    yield ""
    yield from _known(told)


# -- what it is -----------------------------------------------------------------------------------


def _lease(told: Told) -> Iterator[str]:
    states = {
        "probe": "is measured alone, as the first run of its type",
        "running": "runs",
        "draining": "has ended, and is kept until the memory that it left behind is freed",
    }
    yield f"Lease {told['lease']} ({_name(told)}) {states[told['state']]}."
    yield f"{_INDENT}granted {format_seconds(told['since_s'])} ago to process {told['job']['pid']}"
    yield _INDENT + _end(told)
    for place in told["on"]:
        yield (
            f"{_INDENT}on device {place['index']}: {format_mib(place['booked_mib'])} booked,"
            f" {_mib(place['measured_mib'])} held now"
        )
    if not told["on"]:
        yield f"{_INDENT}on no device"
    if told["left_over"]:
        yield f"{_INDENT}left over: process {', '.join(map(str, told['left_over']))}"
    others = [device for device in told["devices"] if device["holders"] > 1]
    if others:
        yield ""
        yield "Beside it:"
        for device in others:
            yield f"{_INDENT}device {device['index']}: {_free(device)}"
            yield from _holders(device, besides=told["lease"])


def _end(told: Told) -> str:
    if told["state"] == "draining":
        return "its memory is expected to go within moments" if told["ends_s"] == 0 else (
            "nobody knows when: its processes live on"
        )  # fmt: skip
    if told["ends_s"] is None:
        return "when it will end is not known: no run of its type has been timed here"
    if told["overdue"]:
        return "it has run longer than any run of its type did: about to end, by what is known"
    return f"expected to end in about {format_seconds(told['ends_s'])}, as runs of its type do"


def _ended(told: Told) -> Iterator[str]:
    event = told["ended"]
    yield f"Lease {event['lease']} ({_title(event)}) has ended: {_outcome(event)}."
    yield (f"{_INDENT}waited {_seconds(event['waited_s'])}, ran {_seconds(event['ran_s'])}")
    if event["devices"]:
        peak = "not measured" if event["peak_mib"] is None else format_mib(event["peak_mib"])
        source = f" ({event['source']})" if event["source"] else ""
        yield f"{_INDENT}{format_mib(event['booked_mib'])} booked, peak {peak}{source}"


def _outcome(event: Told) -> str:
    ways = [
        f"{name} {event[key]}"
        for name, key in (("exit code", "exit_code"), ("signal", "signal"))
        if event[key]
    ]
    return ", ".join([event["outcome"], *ways])


def _waiting(told: Told) -> Iterator[str]:
    yield f"Request {told['ticket']} ({_name(told)}) waits, {format_seconds(told['since_s'])} so far."
    yield f"{_INDENT}why: {told['reason']}"
    yield f"{_INDENT}asks for: {_wish(told['job'])}"
    yield from _takes(told)
    if told["head"]:
        yield f"{_INDENT}it is the head of the queue: what becomes free is kept for it"
    elif told["ahead"]:
        yield _INDENT + _ahead(told["ahead"])
    yield f"{_INDENT}expected start: {_start(told)}"
    yield from _prospect(told)


def _ahead(count: int) -> str:
    return f"{count} {'job waits' if count == 1 else 'jobs wait'} before it"


def _takes(told: Told) -> Iterator[str]:
    """Say what it takes on a device of each model, and where that is from."""
    takes: dict[str, list[str]] = {}
    for device in told["devices"]:
        size = "a device alone" if device["wants_mib"] is None else f"{device['wants_mib']} MiB"
        names = takes.setdefault(f"{size} ({device['how']})", [])
        names += [device["name"]] if device["name"] not in names else []
    for text, names in takes.items():
        on = f" on {', '.join(names)}" if len(takes) > 1 else ""
        yield f"{_INDENT}takes{on}: {text}"


def _type(told: Told) -> Iterator[str]:
    name = shortened(told["type"], width())
    if told.get("broker", "") is None:
        yield f"Type {name}: no broker runs, so nothing runs or waits."
        yield from _like(told)
        return
    yield f"Type {name}: {told.get('runs', 0)} running, {told.get('waits', 0)} waiting."
    yield from _like(told)
    count = told["gpus"]
    a_job = "A job of it" if count == 1 else f"A job of it on {count} devices"
    if told["refusal"] is not None:
        yield f"{a_job} would be refused: {told['refusal']}."
        return
    yield f"{a_job} that is asked for now: {_verdict(told)}."
    yield from _takes(told)
    if told["ahead"]:
        yield _INDENT + _ahead(told["ahead"])
    yield from _prospect(told)


def _like(told: Told) -> Iterator[str]:
    if "like" not in told:
        return
    meant = ", ".join(shortened(name, _NAME) for name in told["like"])
    yield f"No lease, waiting job, label or known type has that name{_meant(meant)}"


def _meant(names: str) -> str:
    return f"; did you mean {names}?" if names else "; as a type it is new."


def _verdict(told: Told) -> str:
    start = told["expected_s"]
    if start is None:
        return "it would wait, nobody knows for how long"
    where = _devices(told["expected_on"])
    alone = ", alone, to be measured" if told["probe"] else ""
    if not told["lets_start"]:
        return f"it would start at once{where}{alone}"
    if start < 1:
        return f"it would wait, and start at any moment{where}{alone}"
    return f"it would wait for about {format_seconds(start)}, then start{where}{alone}"


def _start(told: Told) -> str:
    start = told["expected_s"]
    if start is None:
        return "not known"
    where = _devices(told["expected_on"])
    return f"at any moment{where}" if start < 1 else f"in about {format_seconds(start)}{where}"


def _devices(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    return f" on device{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


# -- where it could go ----------------------------------------------------------------------------


def _prospect(told: Told) -> Iterator[str]:
    if told["devices"]:
        yield ""
        yield "Devices:"
    for device in told["devices"]:
        yield f"{_INDENT}device {device['index']} ({device['name']}): {device['why']}"
        if not device["fits"]:
            yield from _holders(device)
    if told["lets_start"]:
        yield ""
        yield "What would let it start:"
        for text in told["lets_start"]:
            yield f"{_INDENT}{text}"


def _holders(device: Told, besides: str = "") -> Iterator[str]:
    held = [each for each in device["held_by"] if each["lease"] != besides]
    for each in held[:_HOLDERS]:
        counts = each.get("counts_mib", max(each["booked_mib"], each["measured_mib"]))
        ends = each["ends_s"]
        when = "no known end" if ends is None else _until(ends)
        yield (
            f"{_INDENT * 2}{counts} MiB by lease {each['lease']}"
            f" ({shortened(_title(each), _NAME)}), {when}"
        )
    rest = device["holders"] - bool(besides) - len(held[:_HOLDERS])
    if rest > 0:
        yield f"{_INDENT * 2}and by {rest} more"
    if device["foreign_mib"]:
        yield f"{_INDENT * 2}{device['foreign_mib']} MiB by processes outside any lease"


def _until(ends_s: float) -> str:
    return "about to end" if ends_s < 1 else f"ends in about {format_seconds(ends_s)}"


def _free(device: Told) -> str:
    return f"{device['free_mib']} MiB free of {device['capacity_mib']}"


# -- what is known --------------------------------------------------------------------------------


def _known(told: Told) -> Iterator[str]:
    name = shortened(told["type"], _NAME)
    if not told["known"]:
        yield f"Nothing is known of type {name}."
        yield (
            f"{_INDENT}Its first run gets a device alone and is measured; others of it wait until that"
            " has ended, or its memory has settled, and then share devices by what it took."
        )
        return
    for profile in told["known"]:
        yield f"Known of type {name} on {profile['device_model']} ({profile['state']}):"
        for what, text in _facts(profile):
            yield f"{_INDENT}{what}: {text}"
        for warning in profile["warnings"]:
            yield f"{_INDENT}warning: {warning}"


def _facts(profile: Told) -> Iterator[tuple[str, str]]:
    estimate = profile["estimate_mib"]
    size = "a device alone" if estimate is None else f"{estimate} MiB"
    yield "next run books", f"{size} ({profile['how']})"
    if profile["peaks_mib"]:
        yield "peaks", _numbers(profile["peaks_mib"], _mib)
    source = profile["source"]
    if source is not None:
        yield "largest peak", f"{profile['peak_mib']} MiB, {source}: {SOURCES.get(source, source)}"
    yield "measured runs", str(profile["runs"])
    if profile["durations_s"]:
        yield "took", _numbers(profile["durations_s"], _seconds)
    if profile["outcomes"]:
        kinds = dict.fromkeys(profile["outcomes"])
        yield "ends", ", ".join(f"{profile['outcomes'].count(kind)} {kind}" for kind in kinds)
    if profile["failures"]:
        ooms = f", {profile['ooms']} of them of device memory" if profile["ooms"] else ""
        yield "failed in a row", f"{profile['failures']}{ooms}"


def _numbers(figures: Sequence[Any], write: Callable[[Any], str]) -> str:
    """Write the least, the median and the most of several figures."""
    ordered = sorted(figures)
    least, middle, most = (write(ordered[i]) for i in (0, (len(ordered) - 1) // 2, -1))
    return least if least == most else f"{least} to {most}, median {middle}"


# -- words ----------------------------------------------------------------------------------------


def _name(told: Told) -> str:
    return _title({"label": told["job"]["label"], "type": told["type"]})


def _title(entry: Told) -> str:
    """Name a job by its label, else by its type."""
    return shortened(str(entry["label"] or entry["type"]), 2 * _NAME)


def _wish(job: Told) -> str:
    gpus, mib = job["gpus"], job["memory_mib"]
    if not gpus:
        parts = ["no device"]
    else:
        devices = "1 device" if gpus == 1 else f"{gpus} devices"
        size = {None: "as much memory as was learnt", "whole": "whole"}.get(mib, f"{mib} MiB")
        parts = [f"{devices}, {size}{' on each' if gpus > 1 and isinstance(mib, int) else ''}"]
    extras = (("cpus", "CPUs"), ("ram_mib", "MiB of RAM"), ("compute", "% of the multiprocessors"))
    parts += [f"{job[key]} {unit}" for key, unit in extras if job[key]]
    if job["priority"]:
        parts.append(f"priority {job['priority']}")
    return ", ".join(parts)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else format_seconds(seconds)  # noqa: PLR2004 - two digits


def _mib(mib: int | None) -> str:
    return "?" if mib is None else f"{mib} MiB"


_KINDS: dict[str, Callable[[Told], Iterator[str]]] = {
    "lease": _lease,
    "ended": _ended,
    "waiting": _waiting,
    "type": _type,
}
