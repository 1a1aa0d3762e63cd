"""How models spell thoughts: one entry a format."""

from collections.abc import Mapping

from tokenizer_svc.formats.entry import ThoughtFormat

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
        delimiters=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "apriel": ThoughtFormat(
        signs=(("[BEGIN FINAL RESPONSE]",),),
        begin="Here are my reasoning steps:",
        end="[BEGIN FINAL RESPONSE]",
        delimiters=("[END FINAL RESPONSE]",),
    ),
    "granite": ThoughtFormat(
        signs=(("Here is my thought process:", "Here is my response:"),),
        begin="Here is my thought process:",
        end="Here is my response:",
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
    "solar_open2": ThoughtFormat(signs=(("<|think:start|>",),), begin="<|think:start|>", end="<|think:end|>"),
    "plamo3": ThoughtFormat(
        signs=(("<|plamo:", "think"),), begin="<|plamo:begin_think:plamo|>", end="<|plamo:end_think:plamo|>"
    ),
    "pangu": ThoughtFormat(signs=(("[unused9]系统",),), begin="[unused16]", end="[unused17]"),
    "k2_horizon": ThoughtFormat(
        signs=(("<ifm|think>",),),
        begin="<ifm|think>",
        end="</ifm|think>",
        others=("k2_horizon_fast", "k2_horizon_faster"),
    ),
    "k2_horizon_fast": ThoughtFormat(signs=(), begin="<ifm|think_fast>", end="</ifm|think_fast>"),
    "k2_horizon_faster": ThoughtFormat(signs=(), begin="<ifm|think_faster>", end="</ifm|think_faster>"),
    "minicpm3": ThoughtFormat(
        signs=(("<|thought_start|>",),), begin="<|thought_start|>", end="<|thought_end|>"
    ),
    "kimi_vl": ThoughtFormat(signs=(("◁think▷",),), begin="◁think▷", end="◁/think▷"),
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
    "inkling": ThoughtFormat(
        signs=(("<|content_thinking|>", "<|end_message|>"),),
        begin="<|content_thinking|>",
        end="<|end_message|>",
        message="<|message_model|>",
        answer="<|content_text|>",
        said="<|content_text|>",
        closing="<|end_message|>",
        delimiters=(
            *("<|message_model|>", "<|content_text|>", "<|end_message|>"),
            "<|content_model_end_sampling|>",
        ),
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
    "think_response": ThoughtFormat(
        signs=(("</think>", "<response></response>"), ("</think>", "<response>\\n")),
        begin="<think>",
        end="</think>",
        answer="<response>\n?",
        closing="\n?</response>\n?",
    ),
    "think_answer": ThoughtFormat(
        signs=(("</think>", "<answer>"),),
        begin="<think>",
        end="</think>",
        answer="<answer>\n?",
        closing="\n?</answer>\n?",
    ),
    "think": ThoughtFormat(signs=(("</think>",), ("<think>",)), begin="<think>", end="</think>"),
}
