"""The self-attention of a transformer layer."""

from __future__ import annotations

import math

from ovf.testing import values
from ovf.testing.rank import Rank, is_bad
from ovf.testing.values import Scalar, TensorStat

LAST_DIM = Scalar("int", -1)
_MINUS_INF = Scalar("float", -math.inf)


class Attention:
    """Scores, mask, softmax and context between the two linears.

    Scores are `[batch, heads, sequence, sequence]`; a causal mask asks for -inf in them.
    """

    def __init__(self, rank: Rank) -> None:
        """Take what the rank's other parts share.

        Args:
            rank: the rank.
        """
        self.at = rank

    def forward(self, qkv: TensorStat, batch: int, layer: int, saved: dict[str, int]) -> TensorStat:
        """Run the heads of this rank.

        Args:
            qkv: queries, keys and values, `[batch, sequence, 3 * hidden / tp]`.
            batch: the micro-batch.
            layer: the layer within the stage.
            saved: call numbers for the backward.

        Returns:
            The context, `[batch, sequence, hidden / tp]`.
        """
        record = self.at.record
        training = self.at.training
        heads = training.heads // training.layout.tp
        size, tokens = training.batch, training.sequence
        head = max(training.hidden // training.heads, 1)
        query = self.at.draw((size, heads, tokens, head), qkv)
        key = self.at.draw((size, heads, head, tokens), qkv)
        value = self.at.draw((size, heads, tokens, head), qkv)
        square = (size, heads, tokens, tokens)
        scores = self.at.draw(square, query, key, scale=16.0)
        saved["scores"] = record.call("Torch.matmul", "scores", [query, key], [scores])
        scaled = self.at.draw(square, scores)
        factor = Scalar("float", math.sqrt(head))
        saved["scale"] = record.call("Tensor.__truediv__", "scale", [scores, factor], [scaled])
        mask = TensorStat("torch.bool", (1, 1, tokens, tokens), max=True, min=False)
        masked = scaled
        if not is_bad(scaled):
            masked = scaled._replace(min=-math.inf, mean=-math.inf, norm=math.inf)
        saved["mask"] = record.call("Tensor.masked_fill", "mask", [scaled, mask, _MINUS_INF], [masked])
        if is_bad(scaled):
            weights = values.nan(self.at.dtype, square)
        else:
            weights = values.draw(self.at.rng, self.at.dtype, square, 2.0)._replace(max=1.0, min=0.0)
            fault = self.at.fault("masked_row", batch, layer)
            if fault:
                weights = values.nan(self.at.dtype, square)
                self.at.show_next(fault, "Functional.softmax")
        saved["softmax"] = record.call("Functional.softmax", "softmax", [masked], [weights], {"dim": LAST_DIM})
        context = self.at.draw((size, heads, tokens, head), weights, value)
        saved["context"] = record.call("Torch.matmul", "context", [weights, value], [context])
        return context._replace(shape=(size, tokens, heads * head))

    def backward(self, grad: TensorStat, saved: dict[str, int]) -> TensorStat:
        """Run the backward of the heads.

        Args:
            grad: the gradient of the context.
            saved: call numbers for the backward.

        Returns:
            The gradient of queries, keys and values.
        """
        record = self.at.record
        training = self.at.training
        heads, tokens = training.heads // training.layout.tp, training.sequence
        square = (training.batch, heads, tokens, tokens)
        flat = (training.batch * heads, tokens, tokens)
        head = max(training.hidden // training.heads, 1)
        out = grad._replace(shape=(training.batch, heads, tokens, head))
        record.backward("Torch.matmul", saved["context"], [out], [out])
        weights = self.at.grad(square, grad)
        scores = self.at.grad(square, weights)
        record.backward("Functional.softmax", saved["softmax"], [weights], [scores])
        masked = scores
        record.backward("Tensor.masked_fill", saved["mask"], [scores], [masked, None])
        scaled = self.at.grad(square, masked)
        record.backward("Tensor.__truediv__", saved["scale"], [masked], [scaled, None])
        record.backward("Torch.matmul", saved["scores"], [scaled], [scaled._replace(shape=flat)])
        return self.at.grad((*self.at.hidden[:2], 3 * training.hidden // training.layout.tp), scaled)
