import torch

from . import _package, functional

_OPTIONS = ("label_smoothing", "softcap", "z_loss", "class_weight", "token_scaling")
_OPTIONS += ("return_z_loss", "return_token_accuracy", "return_predicted_tokens", "gradient_in_forward")


class ForCausalLMLoss(_package.Layer):
    """transformers' ForCausalLMLoss on logits as they are: no float32 copy is made of them, and the loss is float32. What
    else a model hands on to its loss is looked through for the options of cross_entropy."""

    def forward(
        self, logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **kwargs
    ):
        target = functional.shifted(labels, shift_labels, ignore_index, logits.device)
        options = {name: kwargs[name] for name in _OPTIONS if name in kwargs}
        options |= {"reduction": "mean" if num_items_in_batch is None else "sum", "dtype": torch.float32}
        result = functional.cross_entropy(logits.view(-1, vocab_size), target, ignore_index, **options)
        return functional.per_item(result, num_items_in_batch)


LigerForCausalLMLossLayer = ForCausalLMLoss


class CrossEntropy(_package.Layer):
    def forward(self, logits, target, ignore_index=-100, **options):
        return functional.cross_entropy(logits, target, ignore_index, **options)


class LinearCrossEntropy(_package.Layer):
    def forward(self, hidden, weight, target, bias=None, ignore_index=-100, **options):
        return functional.linear_cross_entropy(hidden, weight, target, bias, ignore_index, **options)
