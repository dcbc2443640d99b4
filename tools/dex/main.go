// Command dex is Dex's server for one client and one user with a password, with its objects in memory. Dex's own command
// serves its gRPC API too, whose module has no published version that fits.
//
//	dex ISSUER CERTIFICATE KEY CLIENT SECRET REDIRECT MAIL HASH
package main

import (
	"context"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/dexidp/dex/server"
	"github.com/dexidp/dex/server/signer"
	"github.com/dexidp/dex/server/tokens"
	"github.com/dexidp/dex/storage"
	"github.com/dexidp/dex/storage/memory"
	"github.com/dexidp/dex/web"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	if len(os.Args) != 9 {
		log.Fatal("dex ISSUER CERTIFICATE KEY CLIENT SECRET REDIRECT MAIL HASH")
	}
	issuer, certificate, key, given := os.Args[1], os.Args[2], os.Args[3], os.Args[4:]
	logger, ctx, now := slog.Default(), context.Background(), func() time.Time { return time.Now().UTC() }
	objects := memory.New(logger)
	objects = storage.WithStaticClients(objects, []storage.Client{
		{ID: given[0], Secret: given[1], RedirectURIs: []string{given[2]}, Name: "Fairlead"},
	})
	objects = storage.WithStaticPasswords(objects, []storage.Password{
		{Email: given[3], Hash: []byte(given[4]), Username: "ada", UserID: "7"},
	}, logger)
	objects = storage.WithStaticConnectors(objects, []storage.Connector{{ID: "local", Type: "local", Name: "Email"}})
	period := signer.LocalConfig{KeysRotationPeriod: "6h"}
	keys, err := period.Open(ctx, objects, time.Hour, now, logger)
	check(err)
	refresh, err := tokens.NewRefreshTokenPolicy(logger, false, "", "", "")
	check(err)
	handler, err := server.NewServer(ctx, server.Config{
		Issuer: issuer, Storage: objects, SkipApprovalScreen: true, Logger: logger, Now: now, Signer: keys,
		IDTokensValidFor: time.Hour, RefreshTokenPolicy: refresh, Web: server.WebConfig{WebFS: web.FS()},
	})
	check(err)
	address, err := url.Parse(issuer)
	check(err)
	listener, err := net.Listen("tcp", address.Host)
	check(err)
	log.Print("listening on ", address.Host)
	check(http.ServeTLS(listener, handler, certificate, key))
}
