"""This package on a GPU: what tests of all packages ask of it (kernels/common/tests/test_cuda.py says what each is)."""

WIDE = r"(softmax_held|softmax_streamed|softmax_backward_held|sparsemax_held|logits_held|logits_streamed)<.*BFloat16|(softmax_forward|softmax_backward|sparsemax_forward|divergence_of_logits|divergence_backward)<.*BFloat16, 8"

# What two blocks a multiprocessor have in flight is worth more than these registers; a thread's slopes and probabilities of
# logits take half of its registers until the row's sums are known.
SPILLS = {r"softmax_held<.*Half, 8": 240, r"logits_streamed<": 48}


def cases(ops, random, names):
    x, dy, odd = random(333, 2048), random(333, 2048), random(65, 577)
    y, sparse, odd_y = ops.softmax(x), ops.sparsemax(x), ops.softmax(odd)
    log_q, log_p = x.float().log_softmax(-1).bfloat16(), dy.float().log_softmax(-1).bfloat16()
    labels = (x[:, 0] > 0).long()
    long, longer = random(5, 24576), random(3, 40960)  # a block's, a cluster's
    middle = random(5, 4096)
    long_y, longer_y = ops.softmax(long), ops.softmax(longer)
    signs = ops.tvd_fwd(y, sparse, labels, 1, False)[1]
    row, element = x[:, 0].float().contiguous(), x.float()

    def of_logits(beta, given):
        z = given.clone()
        return ops.jsd_of_logits_(z, given.flip(0), beta, 2.0), z

    return {
        "softmax": lambda: ops.softmax(x),
        "softmax, odd": lambda: ops.softmax(odd),
        "softmax, long": lambda: ops.softmax(long),
        "softmax, longer": lambda: ops.softmax(longer),
        "softmax_bwd, long": lambda: ops.softmax_bwd(long, long_y),
        "softmax_bwd, longer": lambda: ops.softmax_bwd(longer, longer_y),
        "sparsemax, long": lambda: ops.sparsemax(long),
        "sparsemax, longer": lambda: ops.sparsemax(longer),
        "softmax_bwd": lambda: ops.softmax_bwd(dy, y),
        "softmax_bwd, odd": lambda: ops.softmax_bwd(odd, odd_y),
        "sparsemax": lambda: ops.sparsemax(x),
        "sparsemax_bwd": lambda: ops.sparsemax_bwd(dy, sparse),
        "kl_div": lambda: ops.kl_div(log_q, y, labels, 1, False, 1e-10, False),
        "kl_div, by element": lambda: ops.kl_div(log_q, log_p, None, 0, True, 0.0, True),
        "kl_div_bwd": lambda: ops.kl_div_bwd(row, log_q, y, labels, 1, False, 1e-10, False),
        "kl_div_bwd, by element": lambda: ops.kl_div_bwd(element, log_q, log_p, None, 0, True, 0.0, True),
        "jsd": lambda: ops.jsd(log_q, log_p, None, 0, 0.3),
        "jsd_bwd": lambda: ops.jsd_bwd(row, log_q, log_p, None, 0, 0.3),
        "tvd": lambda: ops.tvd(y, sparse, labels, 1, False),
        "tvd_bwd": lambda: ops.tvd_bwd(row, y, sparse, labels, 1, False),
        "tvd_fwd": lambda: ops.tvd_fwd(y, sparse, labels, 1, False),
        "tvd_fwd, by element": lambda: ops.tvd_fwd(odd, odd_y, None, 0, True),
        "tvd_fwd_bwd": lambda: ops.tvd_fwd_bwd(row, signs, y.shape[1], y.dtype, False),
        "jsd_of_logits_": lambda: of_logits(0.3, x),
        "jsd_of_logits_, middle": lambda: of_logits(0.5, middle),
        "jsd_of_logits_, longer": lambda: of_logits(0.5, longer),
        "jsd_of_logits_, forward": lambda: of_logits(0.0, x),
        "jsd_of_logits_, reverse, odd": lambda: of_logits(1.0, odd),
    }


def large(ops, x, random):
    return {
        "softmax": (x, ops.softmax),
        "sparsemax": (x, ops.sparsemax),
        "jsd": (x, lambda t: ops.jsd(t, t.flip(1), None, 0, 0.3)),
    }
