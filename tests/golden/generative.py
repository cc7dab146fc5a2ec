"""Golden numbers of the generative encoders: plain re-statements of the papers' formulas over transformers.

Takes the folder with the decoders. Gives `generative/NAME.safetensors` beside them: what `generate` writes greedily, GIRCSE's soft
tokens with their loss and its gradients, GRACE's rewards, loss and gradients. One text at a time, no padding, no cache, nothing
clever: what is read is what the papers say.

Shapes: B pairs, K soft tokens or rollouts, M negatives, D hidden size.
"""

import json
import os
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from transformers.utils.chat_template_utils import render_jinja_template

MODELS = ("qwen2", "qwen3", "llama", "mistral")
VOCAB, PAD, EOS = 80, 0, 2
STEPS = 4
TEMPERATURE, REFINEMENT = 0.1, 1.0
ROLLOUTS, NEGATIVES = 3, 2
WEIGHTS = {"consistency": 0.2, "hard": 0.2}
REWARD_TEMPERATURE = 10.0


def make_generative(out: Path):
    folder = out / "generative"
    folder.mkdir(exist_ok=True)
    (folder / "chats.json").write_text(json.dumps(chats(), indent=1) + "\n", encoding="utf-8")
    for seed, name in enumerate(MODELS):
        model = hf.AutoModelForCausalLM.from_pretrained(out / name, attn_implementation="eager").eval()
        tensors = greedy(model, load_file(out / name / "expected.safetensors"))
        generator = torch.Generator().manual_seed(seed)
        tensors |= refined(model, generator)
        tensors |= rationales(model, generator)
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / f"{name}.safetensors")


def draw(generator, num, longest):
    """Texts of ever other lengths, as rows filled up with -1."""
    rows = torch.full((num, longest), -1)
    for row in rows:
        length = torch.randint(2, longest + 1, (1,), generator=generator).item()
        row[:length] = torch.randint(3, VOCAB, (length,), generator=generator)
    return rows


def ids_of(row):
    return row[row >= 0]


# what transformers writes


def greedy(model, expected):
    written = model.generate(
        input_ids=expected["left_ids"], attention_mask=expected["left_mask"], max_new_tokens=12, do_sample=False,
        pad_token_id=PAD, eos_token_id=EOS,
    )
    return {"greedy": written[:, expected["left_ids"].shape[1]:]}


# GIRCSE, eq. 2 to 8


def refine(model, ids):
    """`z_1..z_K` of one text, [K, D]."""
    table = model.get_input_embeddings().weight
    words = table[ids]
    states = []
    for _ in range(STEPS):
        last = model.model(inputs_embeds=words[None]).last_hidden_state[0, -1]
        share = torch.softmax(model.lm_head(last), dim=-1)
        words = torch.cat([words, (share @ table)[None]])
    states = model.model(inputs_embeds=words[None]).last_hidden_state[0, len(ids):]
    return torch.stack([states[: k + 1].mean(dim=0) for k in range(STEPS)])


def refined(model, generator):
    queries, items = draw(generator, 5, 6), draw(generator, 5, 11)
    z_query = torch.stack([refine(model, ids_of(row)) for row in queries])
    z_item = torch.stack([refine(model, ids_of(row)) for row in items])
    per_step = []
    for k in range(STEPS):
        cosine = torch.nn.functional.cosine_similarity(z_query[:, None, k], z_item[None, :, k], dim=-1)
        per_step.append(torch.nn.functional.cross_entropy(cosine / TEMPERATURE, torch.arange(5), reduction="none"))
    loss_bk = torch.stack(per_step, dim=1)
    worse = torch.relu(loss_bk[:, 1:].log() - loss_bk[:, :-1].log())
    loss = (loss_bk.mean(dim=1) + REFINEMENT * worse.mean(dim=1)).mean()
    tensors = {"icr/queries": queries, "icr/items": items, "icr/refined": z_item.detach(), "icr/loss": loss.detach()[None]}
    return tensors | gradients(model, loss, "icr")


# GRACE, eq. 3 to 11


def state(model, prompt, rationale, skip):
    ids = torch.cat([prompt, rationale])
    return model.model(input_ids=ids[None]).last_hidden_state[0, skip:].mean(dim=0)


def log_prob(model, prompt, rationale):
    logits = model(input_ids=torch.cat([prompt, rationale])[None]).logits[0]
    log_probs = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
    return log_probs.gather(1, rationale[:, None]).sum()


def rationales(model, generator):
    batch, skip = 3, 1
    texts = {name: draw(generator, batch * num, 5) for name, num in (("q", 1), ("d", 1), ("n", NEGATIVES))}
    wrote = {name: draw(generator, batch * num, 6) for name, num in (("q", 1), ("d", ROLLOUTS), ("n", NEGATIVES))}

    def h(name, text, rationale):
        return state(model, ids_of(texts[name][text]), ids_of(wrote[name][rationale]), skip)

    def sim(a, b):
        return torch.nn.functional.cosine_similarity(a, b, dim=0)

    with torch.no_grad():
        query = [h("q", i, i) for i in range(batch)]
        positive = [[h("d", i, i * ROLLOUTS + k) for k in range(ROLLOUTS)] for i in range(batch)]
        negative = [[h("n", i * NEGATIVES + m, i * NEGATIVES + m) for m in range(NEGATIVES)] for i in range(batch)]
        reward = torch.zeros(2, batch, ROLLOUTS)
        for i in range(batch):
            others = [j for j in range(batch) if j != i]
            hard = -sum(max(sim(query[i], d) for d in positive[j]) for j in others) / len(others)
            away = sum(sim(query[i], d) for d in negative[i])
            for k in range(ROLLOUTS):
                close = sim(query[i], positive[i][k]) - away
                alike = sum(sim(positive[i][k], positive[i][j]) for j in range(ROLLOUTS) if j != k) / (ROLLOUTS - 1)
                own = -sum(sim(query[j], positive[i][k]) for j in others) / len(others)
                for form, term in enumerate((hard, own)):
                    total = close + WEIGHTS["consistency"] * alike + WEIGHTS["hard"] * term
                    reward[form, i, k] = total / REWARD_TEMPERATURE
    advantage = reward[0] - reward[0].mean(dim=1, keepdim=True)
    log_probs = torch.stack([
        torch.stack([log_prob(model, ids_of(texts["d"][i]), ids_of(wrote["d"][i * ROLLOUTS + k])) for k in range(ROLLOUTS)])
        for i in range(batch)
    ])
    loss = -(advantage * log_probs).sum() / batch
    tensors = {f"grace/text_{name}": rows for name, rows in texts.items()}
    tensors |= {f"grace/wrote_{name}": rows for name, rows in wrote.items()}
    tensors |= {"grace/paper": reward[0], "grace/rollout": reward[1], "grace/log_probs": log_probs.detach(), "grace/loss": loss.detach()[None]}
    return tensors | gradients(model, loss, "grace")


def gradients(model, loss, name):
    model.zero_grad()
    loss.backward()
    found = {f"{name}/gradient/{key}": weight.grad.clone() for key, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    return found


# what transformers makes of chat templates

TEMPLATES = {
    "marked": (
        "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|start|>system\\n' + messages[0]['content'] + '<|end|>\\n' }}\n"
        "{%- else %}\n    {{- '<|start|>system\\nYou are helpful.<|end|>\\n' }}\n{%- endif %}\n"
        "{%- for message in messages %}\n    {%- if (message.role == 'user') or (message.role == 'system' and not loop.first) %}\n"
        "        {{- '<|start|>' + message.role + '\\n' + message.content + '<|end|>' + '\\n' }}\n    {%- endif %}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n    {{- '<|start|>assistant\\n' }}\n"
        "    {%- if enable_thinking is defined and enable_thinking is false %}\n        {{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}\n{%- endif %}"
    ),
    "headed": (
        "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|head|>' + message['role'] + "
        "'<|/head|>\\n\\n'+ message['content'] | trim + '<|end|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
        "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\\n\\n' }}{% endif %}"
    ),
    "bracketed": (
        "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'].strip() %}{%- set rest = messages[1:] %}"
        "{%- else %}{%- set system = '' %}{%- set rest = messages %}{%- endif %}{{- bos_token }}{%- for message in rest %}"
        "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}"
        "{{- '[INST] ' + (system + '\\n\\n' if system else '') + message['content'].strip() + '[/INST]' }}{%- endfor %}"
    ),
}


def chats():
    """What stands around a text, with an instruction and without."""
    found = {}
    for name, template in TEMPLATES.items():
        found[name] = {"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}, "whole": {}}
        for instruction in ("", "Say what is sold."):
            messages = [{"role": "user", "content": "oak desk"}]
            if instruction:
                messages.insert(0, {"role": "system", "content": instruction})
            environment = {"add_generation_prompt": True, "enable_thinking": False, "bos_token": "<s>", "eos_token": "</s>"}
            rendered, _ = render_jinja_template(conversations=[messages], chat_template=template, **environment)
            found[name]["whole"][instruction] = rendered[0]
    return found


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    torch.set_num_threads(1)
    make_generative(Path(__file__).parent)
