"""Records the calls of one rank as msProbe does: call numbers, module nesting, stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovf.testing.step import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ovf.testing.step import Level
    from ovf.testing.values import TensorStat, Value

_NO_KWARGS: Mapping[str, Value] = {}

# What stands below every call of the training script, innermost first.
_LOOP = (
    (
        "File /site-packages/torch/nn/modules/module.py, line 1762, in _call_impl, \n"
        " return forward_call(*args, **kwargs)"
    ),
    "File /train/schedule.py, line 88, in run_micro_batch, \n hidden = stage(hidden)",
    "File /train/schedule.py, line 131, in run_step, \n loss = run_micro_batch(batch, stage)",
    "File /train/main.py, line 54, in train, \n loss = run_step(loader, stage, optimizer)",
    "File /train/main.py, line 77, in <module>, \n train(parse_arguments())",
)

# The user's line of each site: file, line, function, code.
SITES: dict[str, tuple[str, int, str, str]] = {
    "embedding": ("model.py", 31, "forward", "tokens = self.tokens(ids)"),
    "embedding_add": ("model.py", 33, "forward", "return tokens + self.patches(patches)"),
    "norm": ("model.py", 52, "forward", "normed = self.norm(hidden)"),
    "linear": ("parallel.py", 40, "forward", "return F.linear(hidden, self.weight, self.bias)"),
    "scores": ("attention.py", 61, "forward", "scores = torch.matmul(query, key)"),
    "scale": ("attention.py", 62, "forward", "scores = scores / self.norm_factor"),
    "mask": ("attention.py", 63, "forward", 'scores = scores.masked_fill(mask, float("-inf"))'),
    "softmax": ("attention.py", 64, "forward", "weights = F.softmax(scores, dim=-1)"),
    "context": ("attention.py", 65, "forward", "context = torch.matmul(weights, value)"),
    "residual": ("model.py", 58, "forward", "return hidden + self.block(normed)"),
    "gelu": ("mlp.py", 22, "forward", "hidden = F.gelu(hidden)"),
    "gate": ("mlp.py", 24, "forward", "hidden = self.gate(hidden)"),
    "router": ("moe.py", 35, "forward", "weights, experts = self.route(hidden)"),
    "dispatch": ("moe.py", 41, "forward", 'sent = torch.einsum("ect,td->ecd", mask, hidden)'),
    "tokens": ("moe.py", 42, "exchange", "dist.all_to_all_single(received, sent, group=group)"),
    "combine": ("moe.py", 45, "forward", 'return torch.einsum("ect,ecd->td", mask, received)'),
    "tp_reduce": ("parallel.py", 17, "forward", "dist.all_reduce(hidden, group=tp_group)"),
    "send": ("pipeline.py", 20, "send", "dist.send(hidden, peer)"),
    "recv": ("pipeline.py", 27, "receive", "dist.recv(buffer, peer)"),
    "exchange": ("pipeline.py", 39, "exchange", "work = dist.batch_isend_irecv(ops)"),
    "loss": ("loss.py", 12, "forward", "return F.cross_entropy(logits, labels)"),
    "mean_loss": ("loss.py", 13, "forward", "loss = loss / micro_batches"),
    "dp_reduce": ("reducer.py", 30, "reduce", "dist.all_reduce(bucket, group=dp_group)"),
    "dp_mean": ("reducer.py", 31, "reduce", "bucket.div_(replicas)"),
    "norm_of_grads": ("clip.py", 15, "clip", "total = norm(buckets)"),
    "clip": ("clip.py", 21, "clip", "bucket.mul_(coefficient)"),
    "update": ("optimizer.py", 44, "step", "weight.add_(gradient, alpha=-lr)"),
    "precondition": ("optimizer.py", 42, "step", "gradient = torch.div(gradient, scale)"),
    "warm_up": ("parallel.py", 8, "warm_up", "dist.all_reduce(ones, group=tp_group)"),
    "module": ("model.py", 60, "forward", "hidden = layer(hidden)"),
}

FRAMES: dict[str, tuple[str, ...]] = {
    site: (f"File /train/{file}, line {line}, in {function}, \n {code}", *_LOOP)
    for site, (file, line, function, code) in SITES.items()
}


class Recorder:
    """Names the calls of one rank and hands them on, in execution order."""

    def __init__(
        self,
        sink: Callable[[Op], None],
        level: Level,
        *,
        numbered_parameters_grad: bool = True,
    ) -> None:
        """Start with all call numbers at zero.

        Args:
            sink: takes every op.
            level: at `mix`, modules and parameter gradients are recorded too.
            numbered_parameters_grad: whether their names end in a number.
        """
        self._sink = sink
        self._modules = level == "mix"
        self._numbered = numbered_parameters_grad
        self._calls: dict[str, int] = {}
        self._inside: list[str] = []

    def call(
        self,
        api: str,
        site: str,
        args: Sequence[Value],
        output: Sequence[Value],
        kwargs: Mapping[str, Value] = _NO_KWARGS,
    ) -> int:
        """Record a forward call of an API.

        Args:
            api: prefix and function, such as `Functional.linear`.
            site: the place in the user's code, a key of `FRAMES`.
            args: positional arguments before the call.
            output: what it returned; for a communication, its arguments after the call.
            kwargs: keyword arguments before the call.

        Returns:
            The number of the call.
        """
        number = self._calls.get(api, 0)
        self._calls[api] = number + 1
        self._sink(
            Op(
                f"{api}.{number}.forward",
                {"input_args": args, "input_kwargs": kwargs, "output": output},
                self._inside[-1] if self._inside else None,
                FRAMES[site],
            )
        )
        return number

    def next_name(self, api: str) -> str:
        """Tell the name that the next call of an API will have."""
        return f"{api}.{self._calls.get(api, 0)}.forward"

    def backward(self, api: str, number: int, grads: Sequence[Value], output: Sequence[Value]) -> None:
        """Record the backward of an earlier call.

        Args:
            api: prefix and function.
            number: the number of the forward call.
            grads: gradients of its outputs.
            output: gradients of its inputs, None where there is none.
        """
        self._sink(
            Op(
                f"{api}.{number}.backward",
                {"input": grads, "output": output},
                self._inside[-1] if self._inside else None,
            )
        )

    def enter(self, module: str, direction: str, number: int) -> None:
        """Go into a module: what follows has it as parent.

        Args:
            module: path and class, such as `layers.0.mlp.MLP`.
            direction: `forward` or `backward`.
            number: how often this module ran before in this direction.
        """
        if self._modules:
            self._inside.append(f"Module.{module}.{direction}.{number}")

    def leave(
        self,
        inputs: Sequence[Value],
        output: Sequence[Value],
        parameters: Mapping[str, Value] = _NO_KWARGS,
    ) -> None:
        """Come out of the innermost module and record it, as msProbe does at a module's exit.

        Args:
            inputs: its inputs, or the gradients of its outputs.
            output: its outputs, or the gradients of its inputs.
            parameters: its own parameters, forward only.
        """
        if not self._modules:
            return
        name = self._inside.pop()
        parent = self._inside[-1] if self._inside else None
        if ".backward." in name:
            self._sink(Op(name, {"input": inputs, "output": output}, parent))
            return
        body: dict[str, Value] = {
            "input_args": inputs,
            "input_kwargs": _NO_KWARGS,
            "output": output,
            "parameters": parameters,
        }
        self._sink(Op(name, body, parent, FRAMES["module"]))

    def parameters_grad(self, module: str, number: int, grads: Mapping[str, TensorStat | None]) -> None:
        """Record the gradients a module's parameters have after a backward.

        Args:
            module: path and class.
            number: how often it was recorded before.
            grads: the accumulated gradients by parameter.
        """
        if self._modules:
            suffix = f".{number}" if self._numbered else ""
            name = f"Module.{module}.parameters_grad{suffix}"
            self._sink(Op(name, {key: [grad] for key, grad in grads.items()}))
