"""Choosing the next token of each row with that row's own random numbers.

Legend: R rows, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ritornello.common.chat.protocol import GenerationParams

_NUCLEUS_GUESS = 1024  # sorting this many first is a tenth of sorting a vocabulary
_BLOCK = 256
_CACHED = 2**18  # probabilities


def uniforms(seed: int, n: int) -> np.ndarray:
    """The n uniform numbers of one request: a counter-based generator keyed by its seed."""
    return np.random.Generator(np.random.Philox(key=seed)).random(n)


def truncated_probs(
    logits: Float[Tensor, "R V"], params: GenerationParams
) -> tuple[Float[Tensor, "R K"], Int[Tensor, "R K"] | None]:
    """Probabilities after temperature, top-k and top-p, in that order; not renormalised.

    Returns:
        The kept probabilities, and their token ids where they were sorted (None: all tokens, in
        the vocabulary's order).
    """
    probs = torch.softmax(logits.float() / params.temperature, dim=-1)
    if params.top_p >= 1 and not params.top_k:
        return probs, None
    vocabulary = probs.shape[-1]
    kept = min(params.top_k or _NUCLEUS_GUESS, vocabulary)
    top, ids = torch.topk(probs, kept, dim=-1)
    if params.top_p < 1:
        if not params.top_k and bool((top.sum(-1) < params.top_p).any()):
            top, ids = torch.sort(probs, dim=-1, descending=True)
        share = top / top.sum(-1, keepdim=True) if params.top_k else top
        # a token stays while the mass before it is below top_p; the first one always does
        before = share.cumsum(-1) - share
        top = top.masked_fill(before >= params.top_p, 0.0)
    return top, ids


def choose(
    logits: Float[Tensor, "R V"], draws: Sequence[float], params: GenerationParams, *, first: bool
) -> Int[Tensor, " R"]:
    """Next token of every row: the most probable one at temperature 0, else by inverse CDF.

    Args:
        logits: raw scores.
        draws: one uniform number per row; unused at temperature 0.
        first: whether this is the first token of the answer, to which `first_token_temperature`
            and `banned_first_token_ids` apply.
    """
    if first:
        logits = first_token_logits(logits, params)
    if params.temperature == 0:
        return logits.argmax(-1)
    draw = torch.as_tensor(np.asarray(draws), dtype=torch.float64, device=logits.device)[:, None]
    # on a CPU a few rows at a time: what is computed on the way then stays in the cache
    few = max(1, _CACHED // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    tokens = []
    for part, wanted in zip(logits.split(few), draw.split(few), strict=True):
        probs, ids = truncated_probs(part, params)
        place = _inverse_cdf(probs, wanted)
        tokens.append(place if ids is None else ids.gather(1, place))
    return torch.cat(tokens).squeeze(1)


def _inverse_cdf(probs: Float[Tensor, "R K"], draw: Float[Tensor, "R 1"]) -> Int[Tensor, "R 1"]:
    """The first place up to which more than the share `draw` of the mass lies.

    In two steps, for which sums of blocks suffice: a running sum over a vocabulary takes ten times
    as long. In float64: in fp32 a sum over 50,000 probabilities would move the last thresholds.
    """
    blocks = F.pad(probs, (0, -probs.shape[-1] % _BLOCK)).unflatten(-1, (-1, _BLOCK))
    mass = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    wanted = draw * mass[:, -1:]
    block = torch.searchsorted(mass, wanted, right=True)
    inside = blocks.take_along_dim(block[..., None], dim=1).squeeze(1)
    wanted -= F.pad(mass, (1, 0)).gather(1, block)
    place = torch.searchsorted(inside.cumsum(-1, dtype=torch.float64), wanted, right=True)
    return block * _BLOCK + place


def first_token_logits(
    logits: Float[Tensor, "R V"], params: GenerationParams
) -> Float[Tensor, "R V"]:
    """Scores of the first token with its own temperature and without the banned ids."""
    if params.first_token_temperature is not None:
        logits = logits / params.first_token_temperature
    if params.banned_first_token_ids:
        banned = torch.tensor(params.banned_first_token_ids, device=logits.device)
        logits = logits.index_fill(1, banned, -torch.inf)
    return logits
