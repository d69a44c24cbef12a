// The C++ header: owners, exceptions, iteration.
#include <iostream>

#include "tokkata.hpp"

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    tokkata::Model model(argv[1]);
    auto ids = model.tokenize("Hello there", 0);
    if (model.detokenize(ids) != "Hello there") return 3;
    int objects = 0;
    for (auto &event : model.ask(R"({"prompt": "Hello", "max_tokens": 4})"))
        objects += event.kind == TOKKATA_EVENT_JSON && !tokkata::text(event).empty();
    if (objects != 1) return 4;
    tokkata::Session session = model.session();
    session.append(ids);
    tokkata::Session copy = session.fork();
    copy.rollback(1);
    if (session.position() != ids.size() || copy.position() != 1) return 5;
    try {
        model.ask("{}");
        return 6;
    } catch (const tokkata::Error &error) {
        if (error.code() != TOKKATA_ERROR_ARGUMENT || std::string(error.what()).find("prompt") == std::string::npos) return 7;
    }
    std::cout << "owners: ok\n";
    return 0;
}
