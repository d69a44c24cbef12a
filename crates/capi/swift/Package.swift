// swift-tools-version:5.9
import PackageDescription

// Needs the library of `cargo cinstall -p tokkata-capi`, which pkg-config finds.
let package = Package(
    name: "Tokkata",
    products: [
        .library(name: "Tokkata", targets: ["Tokkata"]),
        .executable(name: "Chat", targets: ["Chat"]),
    ],
    targets: [
        .systemLibrary(name: "CTokkata", pkgConfig: "tokkata"),
        .target(name: "Tokkata", dependencies: ["CTokkata"]),
        .executableTarget(name: "Chat", dependencies: ["Tokkata"]),
    ]
)
