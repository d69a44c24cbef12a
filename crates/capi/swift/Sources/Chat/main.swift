// Asks a model: swift run Chat MODEL.gguf "Why is the sky blue?"
import Foundation
import Tokkata

guard CommandLine.arguments.count == 3 else { fatalError("give a model and a question") }
let model = try Model(path: CommandLine.arguments[1])
print("\(try model.tokenize(CommandLine.arguments[2]).count) tokens")
let message = ["role": "user", "content": CommandLine.arguments[2]]
let body: [String: Any] = ["messages": [message], "max_tokens": 40, "stream": true]
let answers = try model.ask(String(decoding: JSONSerialization.data(withJSONObject: body), as: UTF8.self))
for answer in answers { print(answer) }
if let failure = answers.failure { throw failure }
do {
    _ = try Model(path: "/nowhere.gguf")
} catch let error as TokkataError {
    print("as it should be: \(error)")
}
