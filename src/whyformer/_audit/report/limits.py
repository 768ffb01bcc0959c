"""What each test of the audit cannot show. The report prints it below the results of the test."""

TEST_LIMITS = {
    "agreement": (
        "Gradients and leave-one-out are measures of importance, not ground truth: they disagree with each other "
        "too, and the yardstick shows how much. Kendall's tau counts the order of unimportant tokens as much as "
        "that of important ones. After an encoder the state at a token also contains information from its "
        "neighbours, so weight on a position is not weight on a word."
    ),
    "replacement": (
        "An unchanged output does not show that the attention is unused: the values may be similar, or the model may "
        "use other attention or the residual connection instead. A changed output shows that the weights matter for "
        "the computation, not that a reader understands the output from them. The replaced weights may be "
        "unlike any that the model produces."
    ),
    "adversarial": (
        "The other attention is constructed for one example with everything else fixed; no trained model need ever "
        "produce it (Wiegreffe & Pinter, 2019). That other attention would have given the same output does not show "
        "that the model's own was not used. A search that finds nothing does not prove that there is nothing."
    ),
    "adversary": (
        "The adversary starts with the weights of this model and is trained to attend elsewhere. That it exists shows "
        "that this attention is not the only way to these answers, not that this model does not use its own. An "
        "adversary that stays close may have been trained too short."
    ),
    "seeds": (
        "Different seeds give different models. If they attend differently, there may be several ways to solve the "
        "task, each of them really used."
    ),
    "diagnostic": (
        "The small model is trained on few examples and sees each token separately. The attention of a strong model "
        "may encode the prediction itself (where it attends depends on what it will predict), which helps the small "
        "model without explaining anything."
    ),
    "baseline": (
        "That a model can be trained without attention does not show that this one, trained with it, does not use "
        "it. If uniform weights do as well, the other tests say little about attention as such (Wiegreffe & Pinter, "
        "2019)."
    ),
    "shape": "How sharp attention is does not show whether it matters; this section only describes it.",
}  # fmt: skip
