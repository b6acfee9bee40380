"""The GPT of a realistic size that several rows measure, as words of the command line and in a sentence."""

SMALL_GPT = (
    *("model=gpt", "model.layers=4", "model.width=256", "model.heads=4", "model.context=128"),
    *("data=shakespeare", "data.batch_size=8"),
)
SMALL_GPT_TOLD = "GPT of 4 layers, width 256, context 128, batch 8"
