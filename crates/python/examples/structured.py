"""An answer that is an object: python structured.py MODEL.gguf "a text about a person" (needs pydantic)"""

import sys

from pydantic import BaseModel

from tokkata import Model


class Person(BaseModel):
    name: str
    age: int | None


model = Model(sys.argv[1])
grammar = model.grammar(pydantic=Person)
prompt = model.chat_tokens([{"role": "user", "content": f"Who is it, as JSON? {sys.argv[2]}"}])
print(Person.model_validate_json(model.generate(prompt, grammar=grammar, max_tokens=200).text()))
