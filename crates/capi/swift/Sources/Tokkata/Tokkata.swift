import CTokkata

/// What went wrong: one of `TOKKATA_ERROR_…`, and a line that says what to do.
public struct TokkataError: Error, CustomStringConvertible {
    public let code: Int32
    public let description: String
}

@discardableResult
func check(_ status: Int32) throws -> Int32 {
    if status >= 0 { return status }
    var error: OpaquePointer?
    var text: UnsafePointer<CChar>?
    var length = 0
    var message = "an error without a message"
    if tokkata_error_take(&error) == TOKKATA_OK, error != nil,
        tokkata_error_message(error, &text, &length) == TOKKATA_OK, let text
    {
        message = string(text, length)
    }
    tokkata_error_free(error)
    throw TokkataError(code: status, description: message)
}

func string(_ text: UnsafePointer<CChar>?, _ length: Int) -> String {
    guard let text else { return "" }
    return text.withMemoryRebound(to: UInt8.self, capacity: length) {
        String(decoding: UnsafeBufferPointer(start: $0, count: length), as: UTF8.self)
    }
}

/// A loaded model, for any number of threads.
public final class Model: @unchecked Sendable {
    let handle: OpaquePointer

    public init(path: String) throws {
        var handle: OpaquePointer?
        let length = path.utf8.count
        try check(path.withCString { tokkata_model_open($0, length, nil, &handle) })
        self.handle = handle!
    }

    deinit { tokkata_model_free(handle) }

    /// Token ids of a text.
    public func tokenize(_ text: String) throws -> [UInt32] {
        let length = text.utf8.count
        return try text.withCString { bytes in
            var needed = 0
            let flags = UInt32(TOKKATA_ADD_SPECIAL)
            try check(tokkata_tokenize(handle, bytes, length, flags, nil, 0, &needed))
            var ids = [UInt32](repeating: 0, count: needed)
            try check(tokkata_tokenize(handle, bytes, length, flags, &ids, ids.count, &needed))
            return ids
        }
    }

    /// The answers to a request in the terms of OpenAI's API: whole, or its chunks, each as JSON.
    public func ask(_ json: String) throws -> Answers {
        var request: OpaquePointer?
        let length = json.utf8.count
        try check(json.withCString { tokkata_request_json(handle, $0, length, &request) })
        return Answers(handle: request!)
    }
}

/// The events of a request.
public final class Answers: Sequence, IteratorProtocol, @unchecked Sendable {
    let handle: OpaquePointer
    /// What ended them, if something went wrong.
    public private(set) var failure: TokkataError?

    init(handle: OpaquePointer) { self.handle = handle }

    deinit { tokkata_request_free(handle) }

    /// Waits for the next one.
    public func next() -> String? {
        var event = tokkata_event()
        event.size = UInt32(MemoryLayout<tokkata_event>.size)
        do {
            guard try check(tokkata_next_event(handle, -1, &event)) == TOKKATA_OK else { return nil }
        } catch {
            failure = error as? TokkataError
            return nil
        }
        return string(event.text, event.text_len)
    }

    /// Ends them, from any thread.
    public func cancel() { tokkata_cancel(handle) }
}
