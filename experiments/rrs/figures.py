"""Figures of RRS, drawn from the table of measurements."""

from collections.abc import Iterator

from ritornello.common.reporting import Figure, Results, new_figure

_LABELS = {
    "fp": "not quantised",
    "original": "original",
    "rtn": "RTN",
    "gptq": "GPTQ",
    "smoothquant": "SmoothQuant",
    "rs": "RS",
    "rs_all": "RS, all inputs",
    "rs_grouped": "RS g128",
    "rotation": "rotation",
    "rrs": "RRS",
    "rrs_all": "RRS, all inputs",
    "rrs_per_channel": "RRS g1",
    "rrs_tn": "RRS token-normalised",
}


def figures(results: Results) -> Iterator[Figure]:
    """Perplexities, outliers by layer, error by group size and by number of spikes."""
    yield from _perplexity_bars(results)
    yield from _outliers_by_layer(results)
    yield from _error_curve(
        results, "group_sizes", "group_size", "channels that share a scale", "error_by_group_size"
    )
    yield from _error_curve(
        results, "spike_counts", "spike_tokens", "spike tokens of 512", "error_by_spike_tokens"
    )


def _perplexity_bars(results: Results) -> Iterator[Figure]:
    parts = [
        (part, title)
        for part, title in (
            ("language_model", "weights 16 bit, activations 4 bit"),
            ("four_bit_weights", "weights 4 bit, activations 4 bit"),
            ("four_bit_cache", "weights, activations, keys and values 4 bit"),
        )
        if not results.select(part, "perplexity").empty
    ]
    if not parts:
        return
    figure, axes = new_figure(1, len(parts), squeeze=False)
    for axis, (part, title) in zip(axes[0], parts, strict=True):
        rows = results.select(part, "perplexity")
        names = [_LABELS.get(str(arm), str(arm)) for arm in rows["arm"]]
        bars = axis.barh(names, list(rows["value"]))
        axis.bar_label(bars, fmt="%.4g", padding=3, fontsize=8)
        axis.set(xscale="log", xlabel="perplexity (log scale)", title=title)
        axis.invert_yaxis()
        axis.margins(x=0.15)
    caption = "Perplexity of each quantiser; shorter is better."
    yield Figure("perplexity", caption=caption, figure=figure)


def _outliers_by_layer(results: Results) -> Iterator[Figure]:
    rows = results.select("outliers", "channel_max_over_median")
    if rows.empty:
        return
    kinds = list(rows["input"].unique())
    figure, axes = new_figure(1, len(kinds), width=3.4, squeeze=False, sharey=True)
    for axis, kind in zip(axes[0], kinds, strict=True):
        for arm, curve in rows[rows["input"] == kind].groupby("arm", sort=False):
            axis.plot(curve["layer"], curve["value"], label=_LABELS.get(str(arm), str(arm)))
        axis.set(yscale="log", xlabel="layer", title=str(kind).replace("_", " "))
    axes[0, 0].set_ylabel("largest channel / median channel")
    axes[0, -1].legend()
    caption = (
        "Largest magnitude of the largest channel over that of the median channel, for each kind "
        "of input, before and after rotation and smoothing."
    )
    yield Figure("outliers_by_layer", caption=caption, figure=figure)


def _error_curve(
    results: Results, part: str, along: str, label: str, name: str
) -> Iterator[Figure]:
    rows = results.select(part, "relative_error")
    if rows.empty:
        return
    figure, axis = new_figure()
    for arm, curve in rows.groupby("arm", sort=False):
        mean = curve.groupby(along)["value"].mean()
        axis.plot(mean.index, mean.to_numpy(), marker="o", label=_LABELS.get(str(arm), str(arm)))
    axis.set(yscale="log", xlabel=label, ylabel="relative output error")
    axis.set_xscale("symlog" if rows[along].min() == 0 else "log", base=2)
    axis.legend()
    caption = f"Error of a linear layer with INT4 activations against {label}; mean over seeds."
    yield Figure(name, caption=caption, figure=figure)
