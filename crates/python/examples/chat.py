"""A conversation: python chat.py MODEL.gguf"""

import sys

from tokkata import Model

model = Model(sys.argv[1])
messages = []
for line in sys.stdin:
    messages.append({"role": "user", "content": line.strip()})
    answer = ""
    for chunk in model.stream({"messages": messages}):
        for choice in chunk["choices"]:
            text = choice["delta"].get("content") or ""
            print(text, end="", flush=True)
            answer += text
    print()
    messages.append({"role": "assistant", "content": answer})
