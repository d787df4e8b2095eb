"""Causes on the links: NVLink, PCIe, the network, and copies between host and devices."""

from __future__ import annotations

import polars as pl

from stepscope.comparison.diagnosis.case import (
    COLLECTIVES,
    Judgement,
    Missing,
    Rule,
    View,
    exposed_on_device,
    not_grown,
    not_slower,
    typical_slowdown,
)
from stepscope.comparison.diagnosis.change import ABSENT, Change, evidence, fold, gpu_name, moved, span
from stepscope.comparison.diagnosis.workload import is_other, other_work
from stepscope.comparison.model import Evidence, RuledOut
from stepscope.core import units
from stepscope.core.names import map_names, shorten, transfer_kind
from stepscope.core.table import filtered

_PCIE = ("gpu_pcie_transmit", "gpu_pcie_receive", "gpu_pcie_tx_rate", "gpu_pcie_rx_rate")
_NVLINK = ("gpu_link_transmit", "gpu_link_receive", "gpu_nvlink_tx_rate", "gpu_nvlink_rx_rate")
#: Traffic near zero varies by factors, but not tenfold.
_TIMES = 10.0
#: Traffic (bytes/s) that can slow other transfers: 1/16 of a PCIe 3.0 x16 link (15.75 GB/s, the slowest in use) and of
#: a 100 GB/s link between devices (four NVLink 2 lanes one way). Less takes up below 7 % of the link's time.
_LEAST = {"pcie": 15.75e9 / 16, "nvlink": 100e9 / 16}
#: Copies between host and device, and the least time of one that is no mere value.
_HOST_COPIES = ("HtoD", "DtoH")
_LONG_NS = 20_000.0
_NICS = ("net_recv_bytes_rate", "net_sent_bytes_rate", "net_rx_rate", "net_tx_rate")
_LOSSES = (
    "net_retransmits",
    "tcp_retransmits",
    "net_drops",
    "net_recv_drops",
    "net_sent_drops",
    "net_errors",
    "rdma_retransmits",
)
#: Bytes per second of a 10 Gbit/s interface; a slower one is no job's network.
_NIC_LIMIT = 1.25e9


def interconnect_pcie(view: View) -> Judgement:
    """Another process fills the PCIe link of the job's devices. See `_link`."""
    return _link(view, "interconnect_pcie", "pcie", _PCIE, "PCIe")


def interconnect_nvlink(view: View) -> Judgement:
    """Another process fills the links between the job's devices. See `_link`."""
    return _link(view, "interconnect_nvlink", "nvlink", _NVLINK, "NVLink")


def _link(view: View, name: str, kind: str, metrics: tuple[str, ...], word: str) -> Judgement:
    """Traffic on a link of the job's devices that is not the job's own and slows its transfers and kernels.

    Necessary: traffic is ten times the base's and more than 1/16 of the link's speed, and the job's own copies over
    that link, at full speed, would make up at most half of it.
    Supporting: copies, collectives and kernels on these devices are slower per call.
    """
    if not any(view.kernels(device).height for device in view.devices("gpu")):
        return RuledOut(name, "no accelerator worked")
    traffic = {device: _most(view, device, metrics) for device in view.devices("gpu")}
    known = {device: change for device, change in traffic.items() if change.is_known}
    if not known:
        return Missing(name, f"{metrics[0]} and {metrics[1]} ({word} traffic of the job's devices)")
    device = max(known, key=lambda d: known[d].other or 0.0)
    flow = known[device]
    if not flow.is_real or (flow.other or 0.0) < _LEAST[kind] or (flow.other or 0.0) < _TIMES * (flow.base or 0.0):
        return RuledOut(name, f"{word} traffic of {device}: {span(flow.base, flow.other, flow.unit)}")
    own = _own_bytes(view, device, kind)
    if own is not None and own > 0.5 * (flow.other or 0.0):
        return RuledOut(name, f"{word} traffic {moved(flow)}, but the job's own copies may be all of it")
    shown = [evidence(f"{word} traffic of the device", flow, role="necessary", device=device, metric=metrics[0])]
    shown += [
        evidence(f"{word} traffic of the device", c, device=d, metric=metrics[0])
        for d, c in known.items()
        if d != device
    ]
    confidence = 0.6
    if own is not None:
        shown.append(evidence(f"the job's own copies are {units.rate(own)} of it at most", device=device))
        confidence += 0.1
    costs = _slowed(view, device)
    says = f"{word} traffic of {gpu_name(device, device)} {moved(flow)}"
    if own is not None:
        says += f", at most {units.rate(own)} of it this job's"
    if costs:
        says += f"; {costs[0].text}"
        confidence += 0.15
    quiet = [k for k in ("pcie", "nvlink") if k != kind]
    for other in quiet:
        change = _most(view, device, _PCIE if other == "pcie" else _NVLINK)
        if change.is_known and (change.other or 0.0) < _LEAST[other]:
            label = "PCIe" if other == "pcie" else "NVLink"
            shown.append(evidence(f"{label} traffic stays low", change, device=device))
            confidence += 0.05
    kernels = view.work.filter((pl.col("device") == device) & (pl.col("delta_ns") > 0) & pl.col("is_real"))
    affected = float(kernels["delta_ns"].sum()) if view.same_cycles else 0.0
    return view.suspect(
        name,
        f"{says}: another process uses the link.",
        max(affected, 0.0),
        confidence,
        shown,
        resource=f"{word} link",
        device=device,
        magnitude=flow.ratio,
        explained_ns=exposed_on_device(view, affected),
        consequences=costs,
        advice="find the neighbour: nvidia-smi dmon -s t on all devices, copies to and from host memory in other"
        " processes",
    )


def _most(view: View, device: str, metrics: tuple[str, ...]) -> Change:
    changes = [view.resource(device, metric) for metric in metrics]
    known = [change for change in changes if change.is_known]
    return max(known, key=lambda change: change.other or 0.0) if known else ABSENT


def _own_bytes(view: View, device: str, kind: str) -> float | None:
    """Upper bound of the job's own traffic on the link, from the time of its copies. Units: bytes/s."""
    if not view.same_cycles or not view.step.other:
        return None
    is_copy = (pl.col("device") == device) & (pl.col("category") == "memcpy")
    peer = pl.col("name").str.contains("(?i)DtoD|PtoP|Device *-> *Device")
    rows = view.work.filter(is_copy & (peer if kind == "nvlink" else ~peer))
    # The fastest links there are: PCIe 5.0 x16 moves 63 GB/s one way, NVLink 4 450.
    fastest = 63e9 if kind == "pcie" else 450e9
    return float(rows["total_ns_other"].fill_null(0).sum()) / view.step.other * fastest


def _slowed(view: View, device: str) -> list[Evidence]:
    """Copies, collectives and kernels of the device that take longer per call."""
    on_device = pl.col("device") == device
    moves = pl.col("category").is_in(("memcpy", "memset")) | pl.col("is_collective")
    work = view.work.filter(on_device & pl.col("category").is_in(("kernel", "memcpy", "memset")))
    slower = work.filter(pl.col("ns_per_call_real") & (pl.col("ns_per_call_other") > 1.05 * pl.col("ns_per_call_base")))
    slowed = []
    for rows in (slower.filter(moves), slower.filter(~moves)):
        for row in rows.sort("delta_ns", descending=True).head(3).iter_rows(named=True):
            ratio = row["ns_per_call_other"] / row["ns_per_call_base"]
            change = Change(row["ns_per_call_base"], row["ns_per_call_other"], True, "ns")
            text = f"{shorten(row['name'])} takes {fold(ratio)} as long per call"
            slowed.append(evidence(text, change, role="consequence", device=device, name=row["name"]))
    whole = typical_slowdown(work.filter(~moves))
    if whole is not None and whole >= 1.05:
        slowed.append(evidence(f"kernels on it take {fold(whole)} as long", role="consequence", device=device))
    return slowed


def device_copies(view: View) -> Judgement:
    """The job copies more between the host and its devices, and waits for it.

    Necessary: copies of 20 µs and more take 3 % of a cycle longer, because there are more of them, or longer ones; and
    their device computes nothing meanwhile, or the host waits in the call, for as much of it. A change of all of the
    work copies more as well, which is no cause of its own.
    """
    name = "device_copies"
    if not any(view.kernels(device).height for device in view.devices("gpu")):
        return RuledOut(name, "no accelerator worked")
    copies = filtered(view.work, view.work["category"] == "memcpy")
    copies = filtered(copies, map_names(copies["name"], lambda name: transfer_kind(name) in _HOST_COPIES, pl.Boolean()))
    more = copies.filter(
        (pl.col("delta_ns") > 0)
        & (pl.col("calls_real") | pl.col("is_real"))
        & (pl.col("own_ns_other") >= _LONG_NS * pl.col("calls_other"))
    ).sort("delta_ns", descending=True)
    grown = float(more["delta_ns"].sum())
    ends = [float(copies[f"own_ns_{side}"].sum()) for side in ("base", "other")]
    texts = f"copies between host and device take {span(ends[0], ends[1], 'ns')} per cycle"
    if grown < view.least_ns:
        return RuledOut(name, texts)
    if not view.is_slower:
        return not_slower(name, view)
    if is_other(other_work(view)):
        return RuledOut(name, f"{texts}, but all of the work is another")
    waits = view.part("exposed memcpy", "synchronisation", "launch and runtime calls").delta
    lost = min(grown, max(waits, 0.0))
    if lost < view.least_ns:
        return RuledOut(name, f"{texts}, while other work goes on")
    first = more.row(0, named=True)
    calls = Change(first["calls_base"], first["calls_other"], is_real=True)
    each = Change(first["ns_per_call_base"], first["ns_per_call_other"], is_real=True, unit="ns")
    pageable = "pageable" in first["name"].lower()
    how = f"{units.number(calls.other)} of {units.duration(each.other)} each ({shorten(first['name'])})"
    return view.suspect(
        name,
        f"The job copies more between host and device: {span(ends[0], ends[1], 'ns')} per cycle, {how}"
        f"{'; memory that is not pinned makes the host wait' if pageable else ''}.",
        lost,
        0.9,
        [
            evidence(f"calls of {shorten(first['name'])} per cycle", calls, role="necessary", name=first["name"]),
            evidence(
                "time of such copies, per cycle", Change(ends[0], ends[1], is_real=True, unit="ns"), role="necessary"
            ),
        ],
        resource="copies",
        device=first["device"],
        magnitude=ends[1] / ends[0] if ends[0] else None,
        explained_ns=exposed_on_device(view, lost),
        advice="keep on the device what is needed there; copy less, or every few steps; copy from and into pinned"
        " memory with non_blocking=True",
    )


def network(view: View) -> Judgement:
    """The network between hosts is slow or full.

    Necessary: collectives take 5 % of a cycle longer, and either interfaces lose or repeat packets more often, or one
    (other than loopback) runs near its limit (10 Gbit/s and more) with twice the base's traffic. Without slower
    collectives, changed rates are the drift of a shared machine.
    """
    name = "network"
    talks = view.part(*COLLECTIVES)
    losses = [(k, c) for k, c in view.resources.items() if k[1] in _LOSSES and c.rose(by=1.0, times=2)]
    full = [
        (k, c)
        for k, c in view.resources.items()
        if k[1] in _NICS and k[0] != "lo" and c.rose(times=2) and (c.other or 0.0) > 0.8 * _NIC_LIMIT
    ]
    if not talks.is_known or (talks.base == 0 and talks.other == 0):
        return RuledOut(name, "there are no collectives")
    if not talks.rose(by=0.05 * view.base_ns):
        reason = f"time in collectives: {span(talks.base, talks.other, 'ns')} per cycle"
        return not_grown(name, view, talks, reason, least_ns=0.05 * view.base_ns)
    if not losses and not full:
        if not any(k[1] in _NICS and k[0] != "lo" for k in view.resources):
            return Missing(name, "traffic, drops and retransmits of the network interfaces")
        return RuledOut(name, "interfaces are neither full nor losing packets")
    (where, metric), change = (losses or full)[0]
    shown = (
        evidence("time in collectives, per cycle", talks, role="necessary", unit="ns"),
        evidence(
            "packets lost or sent again" if losses else "traffic", change, role="necessary", device=where, metric=metric
        ),
    )
    return view.suspect(
        name,
        f"{metric} of {where} {moved(change)}; collectives take {span(talks.base, talks.other, 'ns')}"
        " per cycle: the network is slow or full.",
        talks.delta,
        0.75 if losses else 0.65,
        shown,
        resource="network interface",
        device=where,
        magnitude=change.ratio,
        explained_ns=exposed_on_device(view, talks.delta),
        advice="check errors and speed of the interface (ethtool -S, ibstat), and who else uses it",
    )


RULES = (
    Rule("interconnect_nvlink", interconnect_nvlink),
    Rule("interconnect_pcie", interconnect_pcie),
    Rule("device_copies", device_copies),
    Rule("network", network),
)
