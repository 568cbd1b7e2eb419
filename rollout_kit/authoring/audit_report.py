"""Format an audit as a table and as JSON."""

from collections.abc import Iterable
from statistics import fmean

from ..types import JsonObject
from .audit import AT_ONCE, Audit
from .audit_run import AuditVerdict

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def summarize_audit(audit: Audit) -> JsonObject:
    """Convert an audit to JSON; times are in seconds."""
    kinds = {kind: _summarize_kind(audit.of_kind(kind)) for kind in _list_kinds(audit)}
    first, at_once = audit.verdicts(), audit.verdicts("at once")
    return {
        "verifier": audit.about.get("name", ""),
        "fingerprint": audit.about.get("verifier", ""),
        "reverify": audit.about.get("reverify", ""),
        "flags": [{"flag": each.name, "evidence": each.evidence} for each in audit.flags],
        "remarks": audit.remarks,
        "accuracy_on_gold": kinds.get("gold", {}).get("mean_reward"),
        "is_deterministic": not (
            audit.has("not deterministic")
            or audit.has("differs after a restart")
            or audit.has("leaks state between sessions")
        ),
        "kinds": kinds,
        "latency_s": _compute_latency(first.values()),
        "latency_at_once_s": {"at_once": AT_ONCE, **_compute_latency(at_once.values())},
        "longest_hold_of_the_loop_s": max((v.held_s for v in first.values()), default=0.0),
        "seen": audit.base.seen,
        "had_own_network": audit.had_own_network,
        "processes": audit.num_processes,
        "answers": [
            {
                "case": case.name,
                "kind": case.kind,
                "reward": first[number].reward,
                "verify_s": first[number].verify_s,
                **({"error": first[number].error} if first[number].error else {}),
            }
            for number, case in enumerate(audit.cases)
            if number in first
        ],
    }


def format_audit(found: JsonObject) -> list[str]:
    """Format `summarize_audit` as text."""
    head = ("kind of answer", "answers", "reward", "full", "raised", *QUANTILES)
    rows = [
        (
            kind,
            f"{each['answers']:,}",
            "-" if each["mean_reward"] is None else f"{each['mean_reward']:.3f}",
            f"{each['full']:,}",
            f"{each['raised']:,}",
            *(_format_ms(each["latency_s"].get(name)) for name in QUANTILES),
        )
        for kind, each in found["kinds"].items()
    ]
    at_once = found["latency_at_once_s"]
    blank = ("", "", "", "")
    rows.append(("all", *blank, *(_format_ms(found["latency_s"].get(name)) for name in QUANTILES)))
    if "p50" in at_once:
        label = f"all, {at_once['at_once']} at once"
        rows.append((label, *blank, *(_format_ms(at_once.get(name)) for name in QUANTILES)))
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    text = [_format_row(cells, widths) for cells in (head, *rows)]
    accuracy = found["accuracy_on_gold"]
    text += ["", f"Accuracy on gold: {'-' if accuracy is None else f'{accuracy:.3f}'}"]
    text += [f"Remark: {remark}" for remark in found["remarks"]]
    for each in found["flags"]:
        text.append(f"FLAG {each['flag']}: {each['evidence']}")
    if not found["flags"]:
        text.append(
            f"No flags: verdicts are equal in {found['processes']} processes, repeated, at once,"
            " in another order, after a restart, 400 days later, and without network"
            if found["processes"] > 1
            else "No flags: the verdicts were equal when repeated and concurrent"
        )
    return text


def _list_kinds(audit: Audit) -> Iterable[str]:
    return dict.fromkeys(case.kind for case in audit.cases)


def _summarize_kind(verdicts: list[AuditVerdict]) -> JsonObject:
    rewards = [verdict.reward for verdict in verdicts if verdict.reward is not None]
    return {
        "answers": len(verdicts),
        "mean_reward": fmean(rewards) if rewards else None,
        "full": sum(reward >= 1.0 for reward in rewards),
        "raised": len(verdicts) - len(rewards),
        "latency_s": _compute_latency(verdicts),
    }


def _compute_latency(verdicts: Iterable[AuditVerdict]) -> JsonObject:
    times = sorted(verdict.verify_s for verdict in verdicts)
    if not times:
        return {}
    last = len(times) - 1
    return {name: round(times[round(share * last)], 6) for name, share in QUANTILES.items()}


def _format_ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"


def _format_row(cells: tuple[str, ...], widths: list[int]) -> str:
    first = f"{cells[0]:<{widths[0]}}"
    rest = (f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
    return "  ".join([first, *rest]).rstrip()
