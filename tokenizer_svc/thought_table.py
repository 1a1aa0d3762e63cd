"""How models spell thoughts: one entry a format."""

from collections.abc import Mapping

from tokenizer_svc.format_entry import ThoughtFormat

THOUGHTS: Mapping[str, ThoughtFormat] = {
    "harmony": ThoughtFormat(
        signs=(("<|channel|>", "analysis"),),
        begin="<|channel|>analysis<|message|>",
        end="<|end|>",
        message="<|start|>assistant",
        answer="<|channel|>final<|message|>",
        said="<|channel|>commentary<|message|>",
        delimiters=(
            "<|start|>assistant",
            *(
                f"<|channel|>{channel}{content}<|message|>"
                for channel in ("final", "commentary")
                for content in ("", " json", "<|constrain|>json", " <|constrain|>json")
            ),
            "<|end|>",
        ),
    ),
    "gemma4": ThoughtFormat(
        signs=(("<|channel>", "<channel|>"),), begin="<|channel>thought", end="<channel|>"
    ),
    "cohere": ThoughtFormat(
        signs=(("<|START_THINKING|>",),),
        begin="<|START_THINKING|>",
        end="<|END_THINKING|>",
        delimiters=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    "hy3": ThoughtFormat(
        signs=(("<think", ":opensource"),), begin="<think:opensource>", end="</think:opensource>"
    ),
    "hy4": ThoughtFormat(signs=(("<think", ":6124c78e"),), begin="<think:6124c78e>", end="</think:6124c78e>"),
    "apriel": ThoughtFormat(
        signs=(("[BEGIN FINAL RESPONSE]",),),
        begin="Here are my reasoning steps:",
        end="[BEGIN FINAL RESPONSE]",
        delimiters=("[END FINAL RESPONSE]",),
    ),
    "apertus": ThoughtFormat(
        signs=(("<|inner_prefix|>",),), begin="<|inner_prefix|>", end="<|inner_suffix|>"
    ),
    "solar_open": ThoughtFormat(
        signs=(("<|think|>", "<|content|>"),),
        begin="<|think|>",
        end="<|end|>",
        delimiters=("<|begin|>assistant", "<|content|>", "<|end|>"),
    ),
    "minimax_m3": ThoughtFormat(
        signs=(("<mm:think>",),), begin="<mm:think>", end="</mm:think>", bare_end=True
    ),
    "kimi_k3": ThoughtFormat(
        signs=(("<|open|>", "<|close|>"),),
        begin="<|open|>think<|sep|>",
        end="<|close|>think<|sep|>",
        answer="<|open|>response<|sep|>",
        closing="<|close|>response<|sep|><|close|>message<|sep|>",
        delimiters=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    "muse_glimmer": ThoughtFormat(
        signs=(("<atem:function_calls>",),),
        begin=" to=self<|message|>",
        end="<|eom|>",
        message="<|start|>assistant",
        answer=" to=user<|message|>",
        said=" to=user<|message|>",
        delimiters=("<|start|>assistant", " to=user<|message|>", "<|message|>", "<|eom|>"),
    ),
    "functionary32": ThoughtFormat(
        signs=((">>>${recipient}",),),
        begin="",
        end="",
        message=">>>",
        answer="all\n",
        said="all\n",
        delimiters=(">>>all\n",),
    ),
    "longcat": ThoughtFormat(signs=(("<longcat_think>",),), begin="<longcat_think>", end="</longcat_think>"),
    "seed_oss": ThoughtFormat(signs=(("<seed:think>",),), begin="<seed:think>", end="</seed:think>"),
    "magistral": ThoughtFormat(signs=(("[THINK]", "[/THINK]"),), begin="[THINK]", end="[/THINK]"),
    "think": ThoughtFormat(signs=(("</think>",), ("<think>",)), begin="<think>", end="</think>"),
}
