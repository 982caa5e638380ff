"""What the section of the benchmarks says beside its tables."""

from __future__ import annotations

SELECTION_EXPLAINED = (
    "Prototypes are chosen by k-center on some training images, and the weights looked at on others: how flat "
    "they are, how they go with the length of the backbone's features, and how long, against the average, what "
    "is pooled is."
)
MADE_BY = (
    "Made by these calls, with the weights and the device as below: `gspool reproduce benchmark` (C2 and "
    "ProxyNCA++ with GAP and GSP), with `--losses ms,triplet,panchor,xbm+c1`, with `--poolings all --seeds 0`, with "
    "`--poolings table --folds 0 --seeds 0`, with `--arms search --seeds 0`, and with `--arms search --variants best`. "
    "The setting *mu 1*, and *without zsr* with C2, are of `gspool reproduce components`; rows *drawn apart* and "
    "*earlier step* are not made any more."
)
SETTINGS_EXPLAINED = (
    "*Epsilon 20* and *50*: instead of the paper's 5 (C2) and 0.5 (ProxyNCA++). *Learned*: mu and epsilon are "
    "learned from there on, and like the prototypes with 100 times the learning rate. *Fast*: so are the "
    "prototypes alone. *Tokens*: prototypes are chosen among the local features of training images before the "
    "first step, and learn fast. *Zsr scale 1*: the regularisation's logits are not multiplied by 9.5. *Without "
    "zsr*: lambda 0. *Embedded after*: features are pooled first and embedded then. *Warm-up 3*: three epochs in "
    "which only the new layers learn. *Mu 1*: all of the mass is pooled, with equal weights; it is no part of "
    "the search."
)
EXPLAINED = {
    "fair": "*MAP@R 128D*: mean over single models; ± is the standard deviation over the combinations of one repeat a "
    "fold, shown where every fold has the same repeats. *512D* joins the models of all folds, of every repeat that "
    "is complete and whose embeddings were kept. *Ahead of GAP, paired*: between runs of the same fold and seed, "
    "which see the same batches and crops, with the standard error of the mean; *on validation*: the same on the "
    "held-out classes. *Entropy*: of the pooling weights on the test images, relative to equal weights (1 = average "
    "pooling). GSP is called ahead or behind only where the 95 % interval of the mean difference leaves 0 out "
    "(Student's t). The paper's values are those of BN-Inception.",
    "conventional": "R@K and MAP@R are those of the best of the repeats by R@1, as in the paper; beside it the mean "
    "of R@1 over all of them. Training stops by what is measured on the test classes, as the protocol has it; every "
    "layer draws an embedding of its own. The paper adds max pooling to both layers here; its values stand beside the "
    "rows that do so too.",
}
