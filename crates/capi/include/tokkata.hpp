// tokkata.hpp: the C interface for C++17, with owners in the place of frees and exceptions in the place of statuses.
//
//     tokkata::Model model("model.gguf");
//     for (auto &event : model.ask(R"({"messages": [{"role": "user", "content": "Hello"}]})"))
//         std::cout << tokkata::text(event) << '\n';
#ifndef TOKKATA_HPP
#define TOKKATA_HPP

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokkata.h"

namespace tokkata {

// What went wrong: one of TOKKATA_ERROR_..., and a line that says what to do.
class Error : public std::runtime_error {
  public:
    Error(std::int32_t code, const std::string &message) : std::runtime_error(message), code_(code) {}
    std::int32_t code() const noexcept { return code_; }

  private:
    std::int32_t code_;
};

// Gives a status that is no error back, and throws the others.
inline std::int32_t check(std::int32_t status) {
    if (status >= 0) return status;
    tokkata_error *error = nullptr;
    std::string message = "an error without a message";
    if (tokkata_error_take(&error) == TOKKATA_OK && error != nullptr) {
        const char *text = nullptr;
        std::size_t len = 0;
        if (tokkata_error_message(error, &text, &len) == TOKKATA_OK) message.assign(text, len);
        tokkata_error_free(error);
    }
    throw Error(status, message);
}

// Calls a function with a buffer twice: for how much it needs, and for all of it.
template <typename T, typename Call> std::vector<T> filled(Call call) {
    std::size_t needed = 0;
    check(call(static_cast<T *>(nullptr), std::size_t{0}, &needed));
    std::vector<T> out(needed);
    if (needed > 0) check(call(out.data(), out.size(), &needed));
    out.resize(needed);
    return out;
}

template <typename Call> std::string filled_text(Call call) {
    std::vector<char> out = filled<char>(call);
    return std::string(out.begin(), out.end());
}

template <typename T, std::int32_t (*Free)(T *)> struct Freer {
    void operator()(T *handle) const noexcept { Free(handle); }
};

template <typename T, std::int32_t (*Free)(T *)> using Owner = std::unique_ptr<T, Freer<T, Free>>;

inline std::string_view text(const tokkata_event &event) {
    return event.text == nullptr ? std::string_view() : std::string_view(event.text, event.text_len);
}

// Something asked for. Iterate over its events; each lives until the next.
class Request {
  public:
    explicit Request(tokkata_request *handle) : handle_(handle) {}

    class Iterator {
      public:
        Iterator() = default;
        explicit Iterator(Request *request) : request_(request) { ++*this; }
        tokkata_event &operator*() { return event_; }
        Iterator &operator++() {
            if (check(tokkata_next_event(request_->get(), -1, &event_)) != TOKKATA_OK) request_ = nullptr;
            return *this;
        }
        bool operator!=(const Iterator &other) const { return request_ != other.request_; }

      private:
        Request *request_ = nullptr;
        tokkata_event event_ = TOKKATA_EVENT_INIT;
    };

    Iterator begin() { return Iterator(this); }
    Iterator end() { return Iterator(); }
    // From any thread.
    void cancel() { check(tokkata_cancel(handle_.get())); }
    tokkata_request *get() const noexcept { return handle_.get(); }

  private:
    Owner<tokkata_request, tokkata_request_free> handle_;
};

// A sequence whose cache stays.
class Session {
  public:
    explicit Session(tokkata_session *handle) : handle_(handle) {}

    std::size_t position() const {
        std::size_t position = 0;
        check(tokkata_session_position(handle_.get(), &position));
        return position;
    }
    void append(const std::vector<std::uint32_t> &ids) {
        check(tokkata_session_append(handle_.get(), ids.data(), ids.size()));
    }
    void rollback(std::size_t position) { check(tokkata_session_rollback(handle_.get(), position)); }
    Session fork() const {
        tokkata_session *copy = nullptr;
        check(tokkata_session_fork(handle_.get(), &copy));
        return Session(copy);
    }
    void save(std::string_view path) const { check(tokkata_session_save(handle_.get(), path.data(), path.size())); }
    tokkata_session *get() const noexcept { return handle_.get(); }

  private:
    Owner<tokkata_session, tokkata_session_free> handle_;
};

// A loaded model, for any number of threads.
class Model {
  public:
    explicit Model(std::string_view path, const tokkata_model_options *options = nullptr) {
        tokkata_model *handle = nullptr;
        check(tokkata_model_open(path.data(), path.size(), options, &handle));
        handle_.reset(handle);
    }

    tokkata_model_info info() const {
        tokkata_model_info info = TOKKATA_MODEL_INFO_INIT;
        check(tokkata_model_get_info(handle_.get(), &info));
        return info;
    }
    std::vector<std::uint32_t> tokenize(std::string_view text, std::uint32_t flags = TOKKATA_ADD_SPECIAL) const {
        return filled<std::uint32_t>([&](std::uint32_t *out, std::size_t capacity, std::size_t *needed) {
            return tokkata_tokenize(handle_.get(), text.data(), text.size(), flags, out, capacity, needed);
        });
    }
    std::string detokenize(const std::vector<std::uint32_t> &ids, std::uint32_t flags = 0) const {
        return filled_text([&](char *out, std::size_t capacity, std::size_t *needed) {
            return tokkata_detokenize(handle_.get(), ids.data(), ids.size(), flags, out, capacity, needed);
        });
    }
    // A request in the terms of OpenAI's API.
    Request ask(std::string_view json) const {
        tokkata_request *request = nullptr;
        check(tokkata_request_json(handle_.get(), json.data(), json.size(), &request));
        return Request(request);
    }
    Request generate(const std::vector<std::uint32_t> &ids, const tokkata_generate_options *options = nullptr) const {
        tokkata_request *request = nullptr;
        check(tokkata_request_tokens(handle_.get(), ids.data(), ids.size(), options, &request));
        return Request(request);
    }
    std::vector<float> embed(std::string_view text, bool normalize = true) const {
        return filled<float>([&](float *out, std::size_t capacity, std::size_t *needed) {
            return tokkata_embed(handle_.get(), text.data(), text.size(), normalize, out, capacity, needed);
        });
    }
    // What is said in a recording, by a model that was loaded for speech.
    Request transcribe(std::string_view path, const tokkata_transcribe_options *options = nullptr) const {
        tokkata_request *request = nullptr;
        check(tokkata_transcribe(handle_.get(), path.data(), path.size(), options, &request));
        return Request(request);
    }
    Session session() const {
        tokkata_session *session = nullptr;
        check(tokkata_session_open(handle_.get(), &session));
        return Session(session);
    }
    tokkata_model *get() const noexcept { return handle_.get(); }

  private:
    Owner<tokkata_model, tokkata_model_free> handle_;
};

} // namespace tokkata

#endif // TOKKATA_HPP
